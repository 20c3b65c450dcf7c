// An expandable segment: address space for more than the device holds, mapped page by page.
#pragma once

#include "memory/AddressSpace.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace phantom {

struct Arena {
  Arena(c10::DeviceIndex device, size_t total_bytes, size_t page)
      : page_bytes(page), pages((total_bytes + page - 1) / page), address(reserveRange(device, pages.size() * page)) {}
  ~Arena() { releaseRange(address); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  size_t bytes() const { return pages.size() * page_bytes; }
  size_t firstPage(uintptr_t at) const { return (at - address) / page_bytes; }
  size_t endPage(uintptr_t at) const { return (at - address + page_bytes - 1) / page_bytes; }

  const size_t page_bytes;
  std::vector<bool> pages;  // mapped
  const uintptr_t address;
};

}  // namespace phantom
