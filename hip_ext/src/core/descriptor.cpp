#include "core/descriptor.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace loadback::core {
namespace {

constexpr std::size_t kRoomFds = 8;  // for a peer that sends more than one: they must be closed, not lost

[[noreturn]] void fail(int error, const char* what) { throw std::system_error(error, std::generic_category(), what); }

std::vector<int> descriptors_of(msghdr& message) {
  std::vector<int> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    fds.resize((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(fds.data(), CMSG_DATA(part), fds.size() * sizeof(int));
  }
  return fds;
}

}  // namespace

void send_descriptor(int socket, int fd, std::string_view note) {
  if (note.empty() || note.size() > kMaxNoteBytes) throw std::invalid_argument("a note has 1 to 4096 bytes");
  iovec bytes{const_cast<char*>(note.data()), note.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(part), &fd, sizeof(int));
  ssize_t sent;
  do sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  if (sent < 0) fail(errno, "sending a descriptor");
  if (static_cast<std::size_t>(sent) != note.size()) fail(EMSGSIZE, "sending a descriptor: the socket took a part only");
}

Received receive_descriptor(int socket) {
  std::string note(kMaxNoteBytes, '\0');
  iovec bytes{note.data(), note.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kRoomFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got;
  do got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got < 0) fail(errno, "receiving a descriptor");
  const std::vector<int> fds = descriptors_of(message);
  if (fds.size() != 1 || message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) {
    for (const int fd : fds) close(fd);
    fail(got ? EBADMSG : ECONNRESET, got ? "not exactly one descriptor came" : "the other side has closed");
  }
  note.resize(static_cast<std::size_t>(got));
  return {fds[0], note};
}

}  // namespace loadback::core
