// Many callers on one pool and on queues of their own, small, for the sanitizers. Exits non-zero where a byte is wrong.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "core/host_buffer.hpp"
#include "core/io_queue.hpp"
#include "core/page_copier.hpp"

using namespace loadback::core;

namespace {

constexpr int kCallers = 3;
std::atomic<int> wrong{0};

std::vector<std::byte> content(std::size_t bytes, unsigned seed) {
  static const std::vector<std::byte> noise = [] {
    std::mt19937 random(7);
    std::vector<std::byte> drawn(6 << 20);
    for (auto& byte : drawn) byte = static_cast<std::byte>(random());
    return drawn;
  }();
  const auto start = noise.begin() + seed % (1 << 19);
  return {start, start + static_cast<std::ptrdiff_t>(bytes)};
}

void copy_pages(PageCopier& copier, unsigned seed) {
  std::mt19937 random(seed);
  const std::size_t sizes[] = {1, 63, 4096, 16384, 20000, 65536, 600000};
  for (int round = 0; round < 25; ++round) {
    const std::size_t page_bytes = sizes[random() % std::size(sizes)], held = 1 + random() % 8;
    auto pool = content(held * page_bytes, random());
    std::vector<std::int64_t> pages(random() % (page_bytes > 100000 ? 4 : 40));
    for (auto& page : pages) page = static_cast<std::int64_t>(random() % held);
    std::vector<std::byte> packed(pages.size() * page_bytes);
    copier.gather({packed.data(), packed.size()}, {pool.data(), pool.size()}, pages, page_bytes);
    for (std::size_t index = 0; index < pages.size(); ++index)
      if (std::memcmp(packed.data() + index * page_bytes, pool.data() + static_cast<std::size_t>(pages[index]) * page_bytes, page_bytes))
        ++wrong;
    std::vector<std::byte> back(packed.size());
    std::vector<Move> moves;
    for (std::size_t index = 0; index < pages.size(); ++index)
      moves.push_back({back.data() + index * page_bytes, packed.data() + index * page_bytes, page_bytes});
    copier.move(moves);
    if (back != packed) ++wrong;
  }
}

// Pages of three pieces that end anywhere, hashed as one thread does it without vectors.
void copy_hashed(PageCopier& copier, unsigned seed) {
  std::mt19937 random(seed);
  PageCopier plain(1, Isa::portable);
  const std::size_t sizes[] = {300, 1024, 4096 + 1, 20000, 65536, 300000};
  for (int round = 0; round < 12; ++round) {
    const std::size_t page_bytes = sizes[random() % std::size(sizes)], pages = random() % (page_bytes > 100000 ? 4 : 20);
    const std::size_t first = random() % page_bytes, second = first + random() % (page_bytes - first);
    const auto source = content(pages * page_bytes, random());
    std::vector<std::byte> target(source.size()), again(source.size());
    std::vector<std::byte> digests(pages * kDigestBytes), wanted(pages * kDigestBytes);
    std::vector<Move> moves, plain_moves;
    for (std::size_t page = 0; page < pages; ++page)
      for (const auto& [from, to] : {std::pair{std::size_t{0}, first}, std::pair{first, second}, std::pair{second, page_bytes}}) {
        const std::size_t at = page * page_bytes + from;
        moves.push_back({target.data() + at, source.data() + at, to - from});
        plain_moves.push_back({again.data() + at, source.data() + at, to - from});
      }
    copier.move_hashed(moves, 3, digests.data());
    plain.move_hashed(plain_moves, 3, wanted.data());
    if (target != source || again != source || digests != wanted) ++wrong;
  }
}

void read_file(IoQueue& queue, int fd, const std::vector<std::byte>& file) {
  std::vector<std::byte> memory(file.size());
  std::vector<Transfer> transfers;
  constexpr std::size_t kPage = 10000;
  for (std::size_t at = 0; at < file.size(); at += kPage)
    transfers.insert(transfers.begin() + static_cast<std::ptrdiff_t>(transfers.size() / 2),
                     {fd, at, memory.data() + at, std::min(kPage, file.size() - at)});
  for (const Outcome& outcome : transfer_all(queue, Direction::read, transfers))
    if (outcome.error) ++wrong;
  if (memory != file) ++wrong;
}

void read_files(const char* path) {
  const auto file = content(1 << 20, 4);
  const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, file.data(), file.size()) != static_cast<ssize_t>(file.size())) std::exit(2);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller)
    callers.emplace_back([&] {
      const auto threads = open_threads(16, 3);
      for (int round = 0; round < 5; ++round) read_file(*threads, fd, file);
      try {
        const auto ring = open_uring(16);
        for (int round = 0; round < 5; ++round) read_file(*ring, fd, file);
      } catch (const std::system_error& error) {
        std::fprintf(stderr, "%s\n", error.what());  // a kernel without io_uring
      }
    });
  for (auto& caller : callers) caller.join();
  close(fd);
}

}  // namespace

int main(int, char** arguments) {
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (!has_isa(isa)) continue;
    PageCopier copier(4, isa);
    std::vector<std::thread> callers;
    for (unsigned caller = 0; caller < kCallers; ++caller) callers.emplace_back([&, caller] {
      copy_pages(copier, caller);
      copy_hashed(copier, caller);
    });
    for (auto& caller : callers) caller.join();
  }
  for (const Backing backing : {Backing::plain, Backing::thp, Backing::hugetlb, Backing::memfd, Backing::memfd_hugetlb}) {
    HostBuffer buffer = HostBuffer::create({3 << 20, backing, false, true, -1});
    std::memset(buffer.data(), 1, buffer.bytes());
    const HostBuffer moved = std::move(buffer);
    if (moved.fd() >= 0) HostBuffer::attach(moved.fd(), moved.bytes());
  }
  read_files(arguments[1]);
  if (wrong) std::fprintf(stderr, "%d wrong\n", wrong.load());
  return wrong ? 1 : 0;
}
