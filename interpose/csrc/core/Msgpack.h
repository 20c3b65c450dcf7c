// The little of msgpack that the records need: a writer, and a reader that walks a buffer.
// Format: https://github.com/msgpack/msgpack/blob/master/spec.md
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

namespace phantom {

class Packer {
 public:
  void nil() { put(0xc0); }
  void boolean(bool v) { put(v ? 0xc3 : 0xc2); }
  void integer(int64_t v) {
    if (v >= 0) {
      if (v < 128) put(uint8_t(v));
      else if (v <= 0xff) {
        put(0xcc);
        put(uint8_t(v));
      } else if (v <= 0xffff) {
        put(0xcd);
        big<uint16_t>(uint16_t(v));
      } else if (v <= 0xffffffffLL) {
        put(0xce);
        big<uint32_t>(uint32_t(v));
      } else {
        put(0xcf);
        big<uint64_t>(uint64_t(v));
      }
    } else if (v >= -32) {
      put(uint8_t(int8_t(v)));
    } else {
      put(0xd3);
      big<uint64_t>(uint64_t(v));
    }
  }
  void real(double v) {
    uint64_t bits;
    std::memcpy(&bits, &v, 8);
    put(0xcb);
    big<uint64_t>(bits);
  }
  void string(std::string_view s) {
    if (s.size() < 32) put(uint8_t(0xa0 | s.size()));
    else if (s.size() <= 0xff) {
      put(0xd9);
      put(uint8_t(s.size()));
    } else {
      put(0xdb);
      big<uint32_t>(uint32_t(s.size()));
    }
    out_.append(s);
  }
  void binary(const void* data, size_t n) {
    put(0xc6);
    big<uint32_t>(uint32_t(n));
    out_.append(static_cast<const char*>(data), n);
  }
  void array(size_t n) {
    if (n < 16) put(uint8_t(0x90 | n));
    else {
      put(0xdd);
      big<uint32_t>(uint32_t(n));
    }
  }
  void longArray(uint32_t n) {  // always five bytes
    put(0xdd);
    big<uint32_t>(n);
  }
  void map(size_t n) {
    if (n < 16) put(uint8_t(0x80 | n));
    else {
      put(0xdf);
      big<uint32_t>(uint32_t(n));
    }
  }
  std::string& buffer() { return out_; }

 private:
  void put(uint8_t byte) { out_.push_back(char(byte)); }
  template <typename T>
  void big(T v) {
    for (int shift = int(sizeof(T)) * 8 - 8; shift >= 0; shift -= 8) put(uint8_t(v >> shift));
  }
  std::string out_;
};

// Throws std::runtime_error on malformed or unexpected input: the buffer came over the wire.
class Unpacker {
 public:
  explicit Unpacker(std::string_view in) : in_(in) {}
  bool done() const { return at_ >= in_.size(); }
  bool isNil() const { return !done() && uint8_t(in_[at_]) == 0xc0; }
  void nil() {
    if (take() != 0xc0) fail("nil");
  }
  bool boolean() {
    const uint8_t b = take();
    if (b != 0xc2 && b != 0xc3) fail("bool");
    return b == 0xc3;
  }
  int64_t integer() {
    const uint8_t b = take();
    if (b < 0x80) return b;
    if (b >= 0xe0) return int8_t(b);
    switch (b) {
      case 0xcc: return big<uint8_t>();
      case 0xcd: return big<uint16_t>();
      case 0xce: return big<uint32_t>();
      case 0xcf: return int64_t(big<uint64_t>());
      case 0xd0: return int8_t(big<uint8_t>());
      case 0xd1: return int16_t(big<uint16_t>());
      case 0xd2: return int32_t(big<uint32_t>());
      case 0xd3: return int64_t(big<uint64_t>());
    }
    fail("integer");
  }
  double real() {
    if (uint8_t(peek()) != 0xcb) return double(integer());
    take();
    const uint64_t bits = big<uint64_t>();
    double v;
    std::memcpy(&v, &bits, 8);
    return v;
  }
  std::string_view bytes() {  // str or bin
    const uint8_t b = take();
    size_t n = 0;
    if (b >= 0xa0 && b < 0xc0) n = b & 0x1f;
    else if (b == 0xd9 || b == 0xc4) n = big<uint8_t>();
    else if (b == 0xda || b == 0xc5) n = big<uint16_t>();
    else if (b == 0xdb || b == 0xc6) n = big<uint32_t>();
    else fail("string or binary");
    if (in_.size() - at_ < n) fail("that many bytes");
    const auto out = in_.substr(at_, n);
    at_ += n;
    return out;
  }
  size_t array() {
    const uint8_t b = take();
    if (b >= 0x90 && b < 0xa0) return b & 0x0f;
    if (b == 0xdc) return big<uint16_t>();
    if (b == 0xdd) return big<uint32_t>();
    fail("array");
  }
  size_t map() {
    const uint8_t b = take();
    if (b >= 0x80 && b < 0x90) return b & 0x0f;
    if (b == 0xde) return big<uint16_t>();
    if (b == 0xdf) return big<uint32_t>();
    fail("map");
  }
  // The next element as it stands in the buffer.
  std::string_view raw() {
    const size_t from = at_;
    skip();
    return in_.substr(from, at_ - from);
  }
  void skip() {
    const uint8_t b = uint8_t(peek());
    if (b == 0xc0 || b == 0xc2 || b == 0xc3) {
      take();
      return;
    }
    if (b == 0xca) {
      take();
      big<uint32_t>();
      return;
    }
    if (b == 0xcb) {
      take();
      big<uint64_t>();
      return;
    }
    if ((b >= 0xa0 && b < 0xc0) || b == 0xd9 || b == 0xda || b == 0xdb || (b >= 0xc4 && b <= 0xc6)) {
      bytes();
      return;
    }
    if ((b >= 0x90 && b < 0xa0) || b == 0xdc || b == 0xdd) {
      for (size_t n = array(); n > 0; --n) skip();
      return;
    }
    if ((b >= 0x80 && b < 0x90) || b == 0xde || b == 0xdf) {
      for (size_t n = 2 * map(); n > 0; --n) skip();
      return;
    }
    integer();
  }

 private:
  char peek() const {
    if (done()) throw std::runtime_error("message from the simulator ends too early");
    return in_[at_];
  }
  uint8_t take() {
    const uint8_t b = uint8_t(peek());
    ++at_;
    return b;
  }
  template <typename T>
  T big() {
    T v = 0;
    for (size_t i = 0; i < sizeof(T); ++i) v = T(v << 8) | T(take());
    return v;
  }
  [[noreturn]] void fail(const char* wanted) const {
    throw std::runtime_error(std::string("malformed message from the simulator: expected ") + wanted + " at byte " +
                             std::to_string(at_));
  }
  std::string_view in_;
  size_t at_ = 0;
};

}  // namespace phantom
