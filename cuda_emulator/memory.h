// The memory of one device: part of the address space that is closed except while the device works.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace nestgrad::emulator {

class DeviceMemory {
 public:
  // Poisoned, 16-byte aligned, ends (rounded up to 16) where nothing may be touched. Null: no addresses are
  // left. No address is given out twice, so use after release is always a fault.
  void* allocate(std::size_t bytes);
  bool release(const void* pointer);  // false: not the beginning of an allocation

  std::size_t allocated() const { return allocated_; }
  // Whether all these bytes belong to one allocation.
  bool holds(const void* pointer, std::size_t bytes) const;
  // What this address is, where nothing may be accessed.
  // Empty: not in this device's part of the address space.
  std::string describe(const void* pointer) const;
  // An allocation around which bytes were overwritten. Empty: there is none.
  std::string damage() const;

  // Lets the device in. Nests.
  class Open {
   public:
    explicit Open(DeviceMemory& memory);
    ~Open();
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    DeviceMemory& memory_;
  };

 private:
  using Address = unsigned char*;
  std::map<Address, std::size_t>::const_iterator at_or_before(const void* pointer) const;
  void protect(int protection) const;
  Address first_page(Address begin) const;

  Address base_ = nullptr, next_ = nullptr;
  std::map<Address, std::size_t> allocations_;  // bytes by first address
  std::size_t allocated_ = 0;
  int open_ = 0;
};

}  // namespace nestgrad::emulator
