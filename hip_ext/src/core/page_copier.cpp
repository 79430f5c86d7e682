#include "core/page_copier.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>

#include "core/page_hasher.hpp"

namespace loadback::core {
namespace {

constexpr std::size_t kJobBytes = 256 << 10;
// Pages that a job copies and hashes in turn, and stripes a turn: the best of 13 combinations for the smaller pages. Not for those
// that are copied to small memory pages: there one after the other is better, in long turns.
constexpr std::size_t kHashedTogether = 4;
constexpr std::size_t kHashedTurn = 4;
constexpr std::size_t kLongTurn = 64;
constexpr std::size_t kHashedJobBytes = 1 << 20;  // about

bool overlap(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
  return std::less<>{}(a, b + b_bytes) && std::less<>{}(b, a + a_bytes) && a_bytes && b_bytes;
}

void check_pages(Region packed, Region pool, std::span<const std::int64_t> pages, std::size_t page_bytes) {
  if (!page_bytes) throw std::invalid_argument("page_bytes must be above 0");
  if (packed.bytes / page_bytes < pages.size())
    throw std::invalid_argument(std::to_string(pages.size()) + " pages of " + std::to_string(page_bytes) +
                                " bytes do not fit " + std::to_string(packed.bytes) + " bytes");
  if (overlap(packed.base, packed.bytes, pool.base, pool.bytes))
    throw std::invalid_argument("the packed pages overlap the pool that they are copied from or to");
  const auto held = static_cast<std::int64_t>(pool.bytes / page_bytes);
  for (const std::int64_t page : pages)
    if (page < 0 || page >= held)
      throw std::out_of_range("page " + std::to_string(page) + " is not one of " + std::to_string(held));
}

void check_distinct(std::span<const std::int64_t> pages, std::size_t held) {
  std::vector<bool> seen(held);
  for (const std::int64_t page : pages) {
    if (seen[static_cast<std::size_t>(page)])
      throw std::invalid_argument("page " + std::to_string(page) + " is to be written twice");
    seen[static_cast<std::size_t>(page)] = true;
  }
}

// The moves by what they write. Pieces of pages mostly lie so already: page by page in a pool, piece by piece in an engine.
std::vector<Move> by_target(std::span<const Move> moves, std::size_t pieces_a_page) {
  const auto before = [](const Move& a, const Move& b) { return std::less<>{}(a.to, b.to); };
  std::vector<Move> sorted(moves.begin(), moves.end());
  if (std::is_sorted(sorted.begin(), sorted.end(), before)) return sorted;
  sorted.clear();
  for (std::size_t piece = 0; piece < pieces_a_page; ++piece)
    for (std::size_t index = piece; index < moves.size(); index += pieces_a_page) sorted.push_back(moves[index]);
  if (!std::is_sorted(sorted.begin(), sorted.end(), before)) std::sort(sorted.begin(), sorted.end(), before);
  return sorted;
}

// Sorted by what is written, a move can only overlap its neighbour's target, and a source only the targets around it.
void check_moves(std::span<const Move> moves, std::size_t pieces_a_page = 1) {
  std::vector<Move> sorted = by_target(moves, pieces_a_page);
  std::erase_if(sorted, [](const Move& move) { return move.bytes == 0; });
  if (sorted.empty()) return;
  for (std::size_t index = 1; index < sorted.size(); ++index)
    if (overlap(sorted[index - 1].to, sorted[index - 1].bytes, sorted[index].to, sorted[index].bytes))
      throw std::invalid_argument("two moves write the same bytes");
  const std::byte* const first = sorted.front().to;
  const auto all = static_cast<std::size_t>(sorted.back().to + sorted.back().bytes - first);
  for (const Move& move : sorted) {
    if (!overlap(first, all, move.from, move.bytes)) continue;  // of most batches: from one place to another
    auto next = std::lower_bound(sorted.begin(), sorted.end(), move.from + move.bytes,
                                 [](const Move& a, const std::byte* end) { return std::less<>{}(a.to, end); });
    if (next != sorted.begin() && overlap(std::prev(next)->to, std::prev(next)->bytes, move.from, move.bytes))
      throw std::invalid_argument("a move writes bytes that another one, or itself, reads");
  }
}

void copy_one(const StreamCopy& stream, const Move& move) {
  if (move.bytes < kMinStreamBytes)
    std::memcpy(move.to, move.from, move.bytes);
  else
    stream.copy(move.to, move.from, move.bytes);
}

// A large piece goes as four streams, like four pages would.
void copy_piece(const StreamCopy& stream, const Move& move) {
  constexpr std::size_t kStreams = 4;
  if (!stream.interleave || move.bytes < kJobBytes || move.bytes % (kStreams * 64)) return copy_one(stream, move);
  std::array<Span, kStreams> spans;
  const std::size_t bytes = move.bytes / kStreams;
  for (std::size_t index = 0; index < kStreams; ++index) spans[index] = {move.to + index * bytes, move.from + index * bytes};
  stream.interleave(spans.data(), kStreams, bytes);
}

// Pages [first, last) of one size.
template <class MoveAt>
void copy_pages(const StreamCopy& stream, const MoveAt& move_at, std::size_t first, std::size_t last) {
  std::array<Span, kMaxInterleaved> spans;
  while (first < last) {
    const Move move = move_at(first);
    const std::size_t count = std::min(kMaxInterleaved, last - first);
    if (!stream.interleave || count < 2 || move.bytes < kMinStreamBytes || move.bytes > kMaxInterleavedBytes || move.bytes % 64) {
      copy_piece(stream, move);
      ++first;
      continue;
    }
    for (std::size_t index = 0; index < count; ++index) {
      const Move each = move_at(first + index);
      spans[index] = {each.to, each.from};
    }
    stream.interleave(spans.data(), count, move.bytes);
    first += count;
  }
}

template <class MoveAt>
void spread_pages(WorkerPool& pool, const StreamCopy& stream, std::size_t count, std::size_t page_bytes, MoveAt move_at) {
  if (page_bytes < 2 * kJobBytes) {
    const std::size_t per_job = std::max<std::size_t>(1, kJobBytes / page_bytes);
    pool.run((count + per_job - 1) / per_job, [=, &stream](std::size_t job) {
      copy_pages(stream, move_at, job * per_job, std::min(count, (job + 1) * per_job));
      stream.fence();
    });
    return;
  }
  const std::size_t per_page = (page_bytes + kJobBytes - 1) / kJobBytes;
  pool.run(count * per_page, [=, &stream](std::size_t job) {
    const Move move = move_at(job / per_page);
    const std::size_t start = job % per_page * kJobBytes;
    copy_piece(stream, {move.to + start, move.from + start, std::min(kJobBytes, page_bytes - start)});
    stream.fence();
  });
}

// Moves cut to jobs of about equal size: [first, last) of the pieces each.
struct Pieces {
  std::vector<Move> moves;
  std::vector<std::size_t> job_ends;
};

Pieces cut(std::span<const Move> moves) {
  Pieces pieces;
  std::size_t job_bytes = 0;
  for (Move move : moves) {
    while (move.bytes) {
      const std::size_t bytes = move.bytes < 2 * kJobBytes ? move.bytes : kJobBytes;
      pieces.moves.push_back({move.to, move.from, bytes});
      move = {move.to + bytes, move.from + bytes, move.bytes - bytes};
      job_bytes += bytes;
      if (job_bytes >= kJobBytes) {
        pieces.job_ends.push_back(pieces.moves.size());
        job_bytes = 0;
      }
    }
  }
  if (job_bytes) pieces.job_ends.push_back(pieces.moves.size());
  return pieces;
}

std::vector<std::size_t> page_sizes(std::span<const Move> pieces, std::size_t pieces_a_page) {
  if (!pieces_a_page || pieces.size() % pieces_a_page)
    throw std::invalid_argument(std::to_string(pieces.size()) + " pieces are no whole number of pages");
  std::vector<std::size_t> sizes(pieces.size() / pieces_a_page);
  for (std::size_t piece = 0; piece < pieces.size(); ++piece) sizes[piece / pieces_a_page] += pieces[piece].bytes;
  for (const std::size_t bytes : sizes)
    if (bytes < kMinHashedBytes)
      throw std::invalid_argument("a page of " + std::to_string(bytes) + " bytes: those below " +
                                  std::to_string(kMinHashedBytes) + " are not hashed here");
  return sizes;
}

// Pages in turn keep more memory banks busy, as in interleaved copies. At most kHashedTogether.
void copy_hashed(const HashedCopy& copy, std::span<const Move> pieces, std::span<const std::size_t> sizes, std::byte* digests) {
  std::array<HashedPage, kHashedTogether> under_way;
  std::array<std::byte*, kHashedTogether> digest_of;
  const std::size_t pieces_a_page = pieces.size() / sizes.size();
  std::size_t count = 0;
  for (; count < sizes.size(); ++count) {
    under_way[count].begin(copy, pieces.subspan(count * pieces_a_page, pieces_a_page), sizes[count], false);
    digest_of[count] = digests + count * kDigestBytes;
  }
  while (count) {
    for (std::size_t index = 0; index < count;) {
      if (under_way[index].step(kHashedTurn)) {
        ++index;
        continue;
      }
      under_way[index].finish(digest_of[index]);
      --count;
      under_way[index] = under_way[count];
      digest_of[index] = digest_of[count];
    }
  }
  copy.fence();
}

// One after the other, to small memory pages. What is ahead of a page is mostly the next one.
void copy_hashed_to_small(const HashedCopy& copy, std::span<const Move> pieces, std::span<const std::size_t> sizes,
                          std::byte* digests) {
  const std::size_t pieces_a_page = pieces.size() / sizes.size();
  HashedPage page;
  for (std::size_t index = 0; index < sizes.size(); ++index) {
    page.begin(copy, pieces.subspan(index * pieces_a_page, pieces_a_page), sizes[index], true);
    while (page.step(kLongTurn)) {
    }
    page.finish(digests + index * kDigestBytes);
  }
  copy.fence();
}

}  // namespace

PageCopier::PageCopier(unsigned threads, Isa isa, const std::vector<int>& cpus)
    : stream_(stream_copy(isa)), hashed_(hashed_copy(isa)), pool_(threads, cpus) {}

void PageCopier::gather(Region packed, Region pool, std::span<const std::int64_t> pages, std::size_t page_bytes) {
  check_pages(packed, pool, pages, page_bytes);
  spread_pages(pool_, stream_, pages.size(), page_bytes, [=](std::size_t index) {
    return Move{packed.base + index * page_bytes, pool.base + static_cast<std::size_t>(pages[index]) * page_bytes, page_bytes};
  });
}

void PageCopier::scatter(Region pool, Region packed, std::span<const std::int64_t> pages, std::size_t page_bytes) {
  check_pages(packed, pool, pages, page_bytes);
  check_distinct(pages, pool.bytes / page_bytes);
  spread_pages(pool_, stream_, pages.size(), page_bytes, [=](std::size_t index) {
    return Move{pool.base + static_cast<std::size_t>(pages[index]) * page_bytes, packed.base + index * page_bytes, page_bytes};
  });
}

void PageCopier::move(std::span<const Move> moves) {
  check_moves(moves);
  const Pieces pieces = cut(moves);
  pool_.run(pieces.job_ends.size(), [&](std::size_t job) {
    const std::size_t first = job ? pieces.job_ends[job - 1] : 0;
    for (std::size_t index = first; index < pieces.job_ends[job]; ++index) copy_piece(stream_, pieces.moves[index]);
    stream_.fence();
  });
}

void PageCopier::move_hashed(std::span<const Move> pieces, std::size_t pieces_a_page, std::byte* digests, bool to_small) {
  const auto sizes = page_sizes(pieces, pieces_a_page);
  check_moves(pieces, pieces_a_page);
  if (sizes.empty()) return;
  // Of few pages, so many a job that every thread has two; of large ones fewer, which need no turns and end together.
  std::size_t most = std::max<std::size_t>(1, kHashedJobBytes / sizes.front());
  if (!to_small) most = std::min(most, kHashedTogether);
  const std::size_t per_job = std::clamp<std::size_t>(sizes.size() / (2 * pool_.threads()), 1, most);
  pool_.run((sizes.size() + per_job - 1) / per_job, [&, per_job](std::size_t job) {
    const std::size_t first = job * per_job, count = std::min(per_job, sizes.size() - first);
    (to_small ? copy_hashed_to_small : copy_hashed)(hashed_, pieces.subspan(first * pieces_a_page, count * pieces_a_page),
                                                    std::span(sizes).subspan(first, count), digests + first * kDigestBytes);
  });
}

void PageCopier::flat(Region to, Region from) {
  if (to.bytes != from.bytes) throw std::invalid_argument("both must be equally long");
  if (overlap(to.base, to.bytes, from.base, from.bytes)) throw std::invalid_argument("the two overlap");
  pool_.run((to.bytes + kJobBytes - 1) / kJobBytes, [=, this](std::size_t job) {
    const std::size_t start = job * kJobBytes;
    copy_one(stream_, {to.base + start, from.base + start, std::min(kJobBytes, to.bytes - start)});
    stream_.fence();
  });
}

}  // namespace loadback::core
