// The writer. The reader is safetensors.cpp.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/io/file.h"
#include "engine/io/safetensors.h"

namespace nestgrad {
namespace {

using nlohmann::json;
using Named = std::pair<const std::string, Array>;

constexpr std::size_t kAlignment = 64;             // of the data in the file
constexpr std::size_t kHeaderLimit = 100'000'000;  // more is refused by every reader
constexpr std::size_t kRankLimit = 32;             // of this project's reader

std::string_view format_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::f64:
      return "F64";
    case DType::i32:
      break;
  }
  return "I32";
}

// What goes into the file before the numbers, and the tensors in the order in which their numbers follow.
struct Layout {
  std::string start;  // header length, header, padding
  std::vector<const Named*> order;
};

Layout lay_out(const SafeTensors& contents, const std::string& what) {
  const auto fail = [&](std::string_view problem) {
    throw IoError(fmt::format("[safetensors] {}: {}", printable(what), problem));
  };
  Layout out;
  for (const Named& tensor : contents.tensors) {
    const auto& [name, array] = tensor;
    const std::string tag = fmt::format("tensor '{}'", printable(name));
    if (!array.defined()) fail(tag + " holds no numbers and cannot be written; leave it out");
    if (name == "__metadata__") fail(tag + " has the name that the format keeps for metadata; rename it");
    if (array.shape().size() > kRankLimit)
      fail(tag + " has more than 32 axes and could not be read back; reshape it");
    out.order.push_back(&tensor);
  }
  // The format has no padding between tensors: with the widest
  // elements first, each tensor is aligned all the same.
  std::ranges::stable_sort(out.order, std::ranges::greater{},
                           [](const Named* t) { return size_of(t->second.dtype()); });

  std::vector<std::string> items;
  try {
    if (!contents.metadata.empty()) items.push_back("\"__metadata__\":" + json(contents.metadata).dump());
    std::size_t offset = 0;
    for (const Named* tensor : out.order) {
      const auto& [name, array] = *tensor;
      items.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                                  json(name).dump(), format_name(array.dtype()), to_string(array.shape()),
                                  offset, offset + array.bytes()));
      offset += array.bytes();
    }
  } catch (const json::exception&) {
    fail("the name of a tensor or a metadata entry is not UTF-8 text; rename it");
  }
  std::string header = fmt::format("{{{}}}", fmt::join(items, ","));
  const std::uint64_t length = (8 + header.size() + kAlignment - 1) / kAlignment * kAlignment - 8;
  if (length > kHeaderLimit) fail("the names and metadata take more than 100000000 bytes; split the file");
  header.resize(length, ' ');
  out.start.resize(8);
  std::memcpy(out.start.data(), &length, 8);
  out.start += header;
  return out;
}

std::string_view bytes_of(const Array& array) {
  return {reinterpret_cast<const char*>(array.data()), array.bytes()};
}

}  // namespace

std::string format_safetensors(const SafeTensors& contents) {
  const Layout layout = lay_out(contents, "contents");
  std::string bytes = layout.start;
  for (const Named* tensor : layout.order) bytes += bytes_of(tensor->second.to(Device::cpu()));
  return bytes;
}

void write_safetensors(const std::string& path, const SafeTensors& contents) {
  const Layout layout = lay_out(contents, path);
  AtomicFile file(path);
  file.write(layout.start);
  for (const Named* tensor : layout.order) file.write(bytes_of(tensor->second.to(Device::cpu())));
  file.commit();
}

}  // namespace nestgrad
