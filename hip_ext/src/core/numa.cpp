#include <unistd.h>

#include <charconv>
#include <fstream>
#include <numeric>
#include <stdexcept>

#include "core/host_buffer.hpp"

namespace loadback::core {
namespace {

constexpr int kMaxNumber = 1 << 20;

int parse_number(std::string_view text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 0 || number > kMaxNumber)
    throw std::invalid_argument("not a list of CPUs: " + std::string(text));
  return number;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> numbers;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const auto dash = part.find('-');
    const int first = parse_number(part.substr(0, dash));
    const int last = dash == std::string_view::npos ? first : parse_number(part.substr(dash + 1));
    for (int number = first; number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

std::map<int, std::vector<int>> numa_nodes(const std::string& root) {
  std::map<int, std::vector<int>> nodes;
  for (const int node : parse_cpu_list(first_line(root + "/online")))
    nodes[node] = parse_cpu_list(first_line(root + "/node" + std::to_string(node) + "/cpulist"));
  if (nodes.empty()) {
    nodes[0].resize(static_cast<std::size_t>(sysconf(_SC_NPROCESSORS_ONLN)));
    std::iota(nodes[0].begin(), nodes[0].end(), 0);
  }
  return nodes;
}

}  // namespace loadback::core
