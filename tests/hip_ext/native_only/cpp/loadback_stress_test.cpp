// Several threads load, store, wait, cancel and drop restores over the double of HIP, for the sanitizers. argv[1]: the double.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "gpu/loadback.hpp"

using namespace loadback::gpu;

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 64;
constexpr unsigned kCallers = 3;
std::atomic<int> wrong{0};

// Each caller has pages of its own, so that bytes can be compared.
void call(Loadback& loadback, std::byte* host, std::byte* device, unsigned seed) {
  std::mt19937 random(seed);
  for (int round = 0; round < 40; ++round) {
    std::memset(host, static_cast<int>(random()), kPages * kPage);
    std::vector<Group> groups(4);
    for (std::size_t page = 0; page < kPages; ++page)
      groups[page % 4].push_back({device + page * kPage, host + (kPages - 1 - page) * kPage, kPage});
    const Deadline deadline = random() % 2 ? Deadline(Clock::now() + std::chrono::seconds(random() % 3)) : std::nullopt;
    const auto restore = loadback.submit(Way::load, groups, deadline);
    if (random() % 4 == 0) restore->cancel();
    if (random() % 4 == 0) restore->wait(2, 0.001);
    try {
      restore->hold_stream(nullptr, 1, 10);
    } catch (const HipError& error) {
      if (error.status != Status::cancelled) ++wrong;
    }
    const Status status = restore->wait(SIZE_MAX, 30);
    if (status != Status::ok && status != Status::cancelled) ++wrong;
    if (status == Status::ok && std::memcmp(host, device, kPages * kPage)) ++wrong;
    if (loadback.submit(Way::store, {{{host, device, kPage}}}, std::nullopt)->wait(1, 30) != Status::ok) ++wrong;
  }
}

}  // namespace

int main(int, char** arguments) {
  std::vector<std::byte> host(kCallers * kPages * kPage), device(host.size());
  auto* const fake = dlopen(arguments[1], RTLD_NOW);
  reinterpret_cast<void (*)(void*, std::size_t)>(dlsym(fake, "fake_device_memory"))(device.data(), device.size());
  Options options;
  options.load_streams = 2;
  options.window_bytes = 64 << 10;
  options.plan.chunk_bytes = 16 << 10;
  {
    Loadback loadback(HipLibrary::open(arguments[1]), options);
    loadback.add_host(host.data(), host.size());
    std::vector<std::thread> callers;
    for (unsigned caller = 0; caller < kCallers; ++caller)
      callers.emplace_back([&, caller] {
        call(loadback, host.data() + caller * kPages * kPage, device.data() + caller * kPages * kPage, caller);
      });
    for (auto& caller : callers) caller.join();
    loadback.submit(Way::load, {{{device.data(), host.data(), host.size()}}}, std::nullopt);  // under way when it is closed
  }
  if (wrong) std::fprintf(stderr, "%d wrong\n", wrong.load());
  return wrong ? 1 : 0;
}
