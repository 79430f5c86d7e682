#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bind/arrays.hpp"
#include "bind/bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace loadback::bind {
namespace {

core::Isa isa_of(const std::string& name) {
  if (name == "auto") return core::best_isa();
  for (const core::Isa isa : {core::Isa::portable, core::Isa::avx2, core::Isa::avx512})
    if (core::isa_name(isa) == name) return isa;
  throw std::invalid_argument("isa is auto, portable, avx2 or avx512, not " + name);
}

std::vector<core::Move> moves_of(const Numbers& to, const Numbers& from, const Numbers& lengths) {
  const auto targets = numbers_of(to), sources = numbers_of(from), bytes = numbers_of(lengths);
  if (targets.size() != sources.size() || targets.size() != bytes.size())
    throw std::invalid_argument("to, from and lengths must be equally long");
  std::vector<core::Move> moves(targets.size());
  for (std::size_t index = 0; index < moves.size(); ++index) {
    if (bytes[index] < 0) throw std::invalid_argument("a length is below 0");
    moves[index] = {reinterpret_cast<std::byte*>(targets[index]), reinterpret_cast<const std::byte*>(sources[index]),
                    static_cast<std::size_t>(bytes[index])};
  }
  return moves;
}

// The pieces of pages, each with its place in the pool, where a page's pieces follow each other.
std::vector<core::Move> placed(core::Region pool, std::span<const std::int64_t> offsets, std::span<const std::int64_t> pieces,
                               std::span<const std::int64_t> piece_bytes, bool out) {
  if (pieces.size() != offsets.size() * piece_bytes.size())
    throw std::invalid_argument(std::to_string(pieces.size()) + " pieces are not " + std::to_string(piece_bytes.size()) +
                                " for each of " + std::to_string(offsets.size()) + " pages");
  std::size_t page_bytes = 0;
  for (const std::int64_t bytes : piece_bytes) {
    if (bytes < 0) throw std::invalid_argument("a length is below 0");
    page_bytes += static_cast<std::size_t>(bytes);
  }
  std::vector<core::Move> moves;
  moves.reserve(pieces.size());
  for (std::size_t page = 0; page < offsets.size(); ++page) {
    if (offsets[page] < 0 || page_bytes > pool.bytes || static_cast<std::size_t>(offsets[page]) > pool.bytes - page_bytes)
      throw std::invalid_argument(std::to_string(page_bytes) + " bytes at " + std::to_string(offsets[page]) +
                                  " do not lie in a pool of " + std::to_string(pool.bytes));
    std::byte* stored = pool.base + offsets[page];
    for (std::size_t piece = 0; piece < piece_bytes.size(); ++piece) {
      auto* const own = reinterpret_cast<std::byte*>(pieces[page * piece_bytes.size() + piece]);
      const auto bytes = static_cast<std::size_t>(piece_bytes[piece]);
      moves.push_back(out ? core::Move{own, stored, bytes} : core::Move{stored, own, bytes});
      stored += bytes;
    }
  }
  return moves;
}

void move_hashed(core::PageCopier& copier, std::span<const core::Move> moves, std::size_t pieces_a_page, core::Region digests,
                 bool to_small) {
  const std::size_t pages = pieces_a_page ? moves.size() / pieces_a_page : 0;
  if (digests.bytes != pages * core::kDigestBytes)
    throw std::invalid_argument("digests takes 16 bytes for each of " + std::to_string(pages) + " pages, not " +
                                std::to_string(digests.bytes));
  const nb::gil_scoped_release release;
  copier.move_hashed(moves, pieces_a_page, digests.base, to_small);
}

}  // namespace

void bind_copies(nb::module_& module) {
  nb::class_<core::PageCopier>(module, "PageCopier",
                               "Copies batches of pages with non-temporal stores on threads of its own, without the interpreter's "
                               "lock. May be used by several threads at once. Do not use after a fork.")
      .def("__init__",
           [](core::PageCopier* self, unsigned threads, const std::string& isa, const std::vector<int>& cpus) {
             new (self) core::PageCopier(threads, isa_of(isa), cpus);
           },
           "threads"_a = 2, "isa"_a = "auto", "cpus"_a = std::vector<int>{},
           "`threads` counts the caller. `isa`: auto, portable, avx2 or avx512; ValueError where the processor has not got it. "
           "`cpus`: what the helpers are pinned to.")
      .def("gather",
           [](core::PageCopier& self, const Writable& packed, const Readable& pool, const Numbers& pages, std::size_t page_bytes) {
             const auto to = region_of(packed), from = region_of(pool);
             const auto numbers = numbers_of(pages);
             const nb::gil_scoped_release release;
             self.gather(to, from, numbers, page_bytes);
           },
           whole("packed"), whole("pool"), whole("pages"), "page_bytes"_a,
           "packed[i] = pool[pages[i]], for pages of `page_bytes`. Arrays are C-contiguous, of any shape, type and alignment; "
           "`pages` is int64 of shape (n,). IndexError for a page that is not in `pool`; ValueError where `packed` holds fewer "
           "than n pages or overlaps `pool`.")
      .def("scatter",
           [](core::PageCopier& self, const Writable& pool, const Readable& packed, const Numbers& pages, std::size_t page_bytes) {
             const auto to = region_of(pool), from = region_of(packed);
             const auto numbers = numbers_of(pages);
             const nb::gil_scoped_release release;
             self.scatter(to, from, numbers, page_bytes);
           },
           whole("pool"), whole("packed"), whole("pages"), "page_bytes"_a,
           "pool[pages[i]] = packed[i]. As `gather`; ValueError also for a page that is named twice.")
      .def("move",
           [](core::PageCopier& self, const Numbers& to, const Numbers& from, const Numbers& lengths) {
             const auto moves = moves_of(to, from, lengths);
             const nb::gil_scoped_release release;
             self.move(moves);
           },
           whole("to"), whole("from_"), whole("lengths"),
           "Copy `lengths[i]` bytes from address `from_[i]` to address `to[i]`, all int64 of shape (n,). The caller answers for the "
           "addresses. ValueError where bytes that are written overlap any others that are named.")
      .def("put_hashed",
           [](core::PageCopier& self, const Writable& pool, const Numbers& offsets, const Numbers& pieces, const Numbers& piece_bytes,
              const Writable& digests) {
             const auto moves = placed(region_of(pool), numbers_of(offsets), numbers_of(pieces), numbers_of(piece_bytes), false);
             move_hashed(self, moves, piece_bytes.shape(0), region_of(digests), true);
           },
           whole("pool"), whole("offsets"), whole("pieces"), whole("piece_bytes"), whole("digests"),
           "Copy n pages into `pool`, page i to byte `offsets[i]` on, and hash them on the way. A page is made of k pieces of "
           "`piece_bytes[k]` bytes, which lie at addresses `pieces[i * k]` on; the caller answers for these. All int64, of shapes "
           "(n,), (n * k,) and (k,). `digests`, of 16 n bytes, gets the XXH3-128 of each page as xxhash spells it; every byte was "
           "hashed from the load that it was copied from. ValueError for a page that does not lie in `pool`, one below 241 bytes "
           "(they are hashed in another way), and bytes that are written and named twice.")
      .def("get_hashed",
           [](core::PageCopier& self, const Readable& pool, const Numbers& offsets, const Numbers& pieces, const Numbers& piece_bytes,
              const Writable& digests) {
             const auto moves = placed(region_of(pool), numbers_of(offsets), numbers_of(pieces), numbers_of(piece_bytes), true);
             move_hashed(self, moves, piece_bytes.shape(0), region_of(digests), false);
           },
           whole("pool"), whole("offsets"), whole("pieces"), whole("piece_bytes"), whole("digests"),
           "The other way: out of `pool`, into the pieces. As `put_hashed`.")
      .def("flat",
           [](core::PageCopier& self, const Writable& to, const Readable& from) {
             const auto target = region_of(to), source = region_of(from);
             const nb::gil_scoped_release release;
             self.flat(target, source);
           },
           whole("to"), whole("from_"),
           "Copy one run of bytes straight through, on all threads: what gathers are measured against. ValueError where lengths "
           "differ or bytes overlap.")
      .def_prop_ro("isa", [](const core::PageCopier& self) { return std::string(core::isa_name(self.isa())); })
      .def_prop_ro("threads", &core::PageCopier::threads);
  module.def(
      "isas",
      [] {
        std::vector<std::string> names;
        for (const core::Isa isa : {core::Isa::portable, core::Isa::avx2, core::Isa::avx512})
          if (core::has_isa(isa)) names.emplace_back(core::isa_name(isa));
        return names;
      },
      "What this processor has.");
}

}  // namespace loadback::bind
