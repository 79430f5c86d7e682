// Hands an open descriptor and a few bytes to another process, over a Unix socket.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace loadback::core {

inline constexpr std::size_t kMaxNoteBytes = 4096;

struct Received {
  int fd;  // close-on-exec; the receiver's to close
  std::string note;
};

// Blocking as the socket is. Both throw std::system_error; the second also where no, or more than one, descriptor came: then none
// is left open. `note` has 1 to kMaxNoteBytes bytes.
void send_descriptor(int socket, int fd, std::string_view note);
Received receive_descriptor(int socket);

}  // namespace loadback::core
