#include "core/page_hasher.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace loadback::core {
namespace {

bool may_pass(const std::byte* to, std::size_t bytes) {
  return bytes >= kMinStreamBytes && reinterpret_cast<std::uintptr_t>(to) % kStripeBytes == 0;
}

}  // namespace

void HashedPage::begin(const HashedCopy& copy, std::span<const Move> pieces, std::size_t bytes, bool to_small) {
  copy_ = &copy;
  past_ = to_small ? copy.past_small : copy.past;
  pieces_ = pieces;
  bytes_ = bytes;
  stripes_left_ = (bytes - 1) / kStripeBytes;  // the last one, whole or not, is left to `finish`
  piece_ = offset_ = in_block_ = 0;
  lanes_ = fresh_lanes();
}

bool HashedPage::step(std::size_t stripes) {
  std::size_t left = std::min(stripes, stripes_left_);
  stripes_left_ -= left;
  while (left) {
    for (; offset_ == pieces_[piece_].bytes; ++piece_) offset_ = 0;
    const Move& piece = pieces_[piece_];
    const std::size_t whole = std::min(left, (piece.bytes - offset_) / kStripeBytes);
    if (!whole) {
      one_stripe();
      --left;
      continue;
    }
    std::byte* const to = piece.to + offset_;
    (may_pass(to, bytes_) ? past_ : copy_->through)(to, piece.from + offset_, whole, in_block_, lanes_);
    offset_ += whole * kStripeBytes;
    in_block_ = (in_block_ + whole) % kBlockStripes;
    left -= whole;
  }
  return stripes_left_ != 0;
}

void HashedPage::finish(std::byte* digest) {
  std::byte last[kStripeBytes];
  std::size_t missing = kStripeBytes;
  for (std::size_t index = pieces_.size(); missing;) {
    const Move& piece = pieces_[--index];
    const std::size_t bytes = std::min(missing, piece.bytes);
    missing -= bytes;
    std::memcpy(last + missing, piece.from + piece.bytes - bytes, bytes);
  }
  const std::size_t rest = (bytes_ - 1) % kStripeBytes + 1;
  scatter(last + kStripeBytes - rest, rest);
  finish_hash(lanes_, last, bytes_, digest);
}

// A stripe that lies in more than one piece.
void HashedPage::one_stripe() {
  std::byte stripe[kStripeBytes], unused[kStripeBytes];
  std::size_t piece = piece_, offset = offset_;
  for (std::size_t done = 0; done < kStripeBytes; ++piece, offset = 0) {
    const std::size_t bytes = std::min(kStripeBytes - done, pieces_[piece].bytes - offset);
    std::memcpy(stripe + done, pieces_[piece].from + offset, bytes);
    done += bytes;
  }
  copy_->through(unused, stripe, 1, in_block_, lanes_);
  in_block_ = (in_block_ + 1) % kBlockStripes;
  scatter(stripe, kStripeBytes);
}

// The next `bytes` of the page, which lie at `from`, into their pieces.
void HashedPage::scatter(const std::byte* from, std::size_t bytes) {
  while (bytes) {
    const Move& piece = pieces_[piece_];
    const std::size_t part = std::min(bytes, piece.bytes - offset_);
    std::memcpy(piece.to + offset_, from, part);
    from += part;
    bytes -= part;
    offset_ += part;
    if (offset_ == piece.bytes && bytes) {
      ++piece_;
      offset_ = 0;
    }
  }
}

}  // namespace loadback::core
