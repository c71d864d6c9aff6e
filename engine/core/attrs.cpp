#include "engine/core/attrs.h"

#include <string_view>

#include "engine/core/body.h"

namespace nestgrad {

namespace attrs_detail {

std::size_t mix(std::size_t seed, std::size_t value) {
  return seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2));
}

bool same(const BodyPtr& a, const BodyPtr& b) { return a == b || (a && b && *a == *b); }

bool same(const Array& a, const Array& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined() || a.data() == b.data()) return a.spec() == b.spec();
  return a.spec() == b.spec() && a.same_bits(b);
}

std::size_t hash_of(const Shape& v) {
  std::size_t h = v.size();
  for (std::int64_t each : v) h = mix(h, std::hash<std::int64_t>{}(each));
  return h;
}

std::size_t hash_of(const BodyPtr& v) { return v ? v->hash : 0; }

std::size_t hash_of(const Array& v) {
  if (!v.defined()) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(v.data()), v.bytes());
  return std::hash<std::string_view>{}(bytes);
}

}  // namespace attrs_detail

void Attrs::wrong_struct() {
  throw GraphError("[op] the attributes given to this op are not its own; see ops/attrs.h for those of each");
}

}  // namespace nestgrad
