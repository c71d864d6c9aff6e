// Whole files and .npy. Safetensors have a file of their own.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "engine/core/device_memory.h"
#include "engine/io/file.h"
#include "engine/io/npy.h"
#include "engine/io/safetensors.h"
#include "tests/engine/io_testing.h"
#include "tests/testing.h"

using namespace nestgrad;
using namespace nestgrad::testing;

namespace {

std::string npy_with(const std::string& header, const std::string& data = "", char version = 1) {
  std::string out = "\x93NUMPY";
  out += version;
  out += '\0';
  const auto length = static_cast<std::uint32_t>(header.size());
  out.append(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4);
  return out + header + data;
}

}  // namespace

TEST_CASE("a file that was written is read back unchanged") {
  const TemporaryFolder folder;
  for (const std::string& text : {std::string(), std::string("a\0b\n\xff", 5), std::string(300000, 'x')}) {
    write_file_atomically(folder / "file", text);
    CHECK(read_file(folder / "file") == text);
  }
  CHECK(folder.files() == 1);
}

TEST_CASE("reading a missing file or a folder is refused with path and reason") {
  const TemporaryFolder folder;
  check_contains(refusal([&] { read_file(folder / "no\nsuch"); }, "no\\x0asuch"), "No such file");
  check_contains(refusal([&] { read_file(folder.path.string()); }, folder.path.string()), "Is a directory");
}

TEST_CASE("a write that is not committed leaves the old file and no temporary") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "file", "old");
  {
    AtomicFile file(folder / "file");
    file.write(std::string_view("new"));
    CHECK(folder.files() == 2);
  }
  CHECK(read_file(folder / "file") == "old");
  CHECK(folder.files() == 1);
}

TEST_CASE("a write does not touch temporaries that others left behind") {
  const TemporaryFolder folder;
  for (int i = 0; i < 1000; ++i)
    std::ofstream(folder / fmt::format(".nestgrad-{}-{}.tmp", getpid(), i)) << "left behind";
  write_file_atomically(folder / "file", "new");
  CHECK(folder.files() == 1001);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path))
    CHECK(read_file(entry.path()) == (entry.path().filename() == "file" ? "new" : "left behind"));
}

TEST_CASE("a process killed in the middle of a write leaves the old file") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "file", "old");
  const pid_t child = fork();
  if (child == 0) {
    AtomicFile file(folder / "file");
    file.write(std::string_view("half of the new"));
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK(read_file(folder / "file") == "old");
}

TEST_CASE("a write that runs out of room says so, leaves the old file and no temporary") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "file", "old");
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_file_atomically(folder / "file", std::string(10000, 'x'));
    } catch (const IoError& error) {
      _exit(std::strstr(error.what(), "what was there is unchanged") != nullptr ? 0 : 1);
    }
    _exit(2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(read_file(folder / "file") == "old");
  CHECK(folder.files() == 1);
}

TEST_CASE("a device is not read, for it may never end") {
  for (const char* path : {"/dev/zero", "/dev/null"})
    check_contains(refusal([&] { read_file(path); }, path), "it is a device");
}

TEST_CASE("a folder is locked by one process at a time, and what a killed one left is removed") {
  const TemporaryFolder folder;
  const std::string path = folder.path.string();
  const pid_t child = fork();
  if (child == 0) {
    const FolderLock lock(path);
    AtomicFile file(folder / "file");
    file.write(std::string_view("half"));
    std::ofstream(folder / "ready") << "yes";
    pause();
  }
  while (!std::filesystem::exists(folder / "ready")) usleep(1000);
  check_contains(refusal([&] { FolderLock lock(path); }, path), "in use by another process");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(folder.files() == 2);
  const FolderLock lock(path);
  lock.remove_temporaries();
  CHECK(folder.files() == 1);
  check_contains(refusal([&] { FolderLock second(path); }, path), "in use");
  refusal([&] { FolderLock none(folder / "missing"); }, "missing");
}

TEST_CASE("temporaries of those that write without the folder's lock stay") {
  const TemporaryFolder folder;
  const FolderLock lock(folder.path.string());
  AtomicFile file(folder / "file");
  file.write(std::string_view("whole"));
  std::ofstream(folder / ".nestgrad-1-0.tmp") << "left";
  CHECK(folder.files() == 2);
  lock.remove_temporaries();
  CHECK(folder.files() == 1);
  file.commit();
  CHECK(read_file(folder / "file") == "whole");
  CHECK(folder.files() == 1);
}

TEST_CASE("a write follows a symbolic link, keeps permissions, and replaces no folder or device") {
  const TemporaryFolder folder;
  namespace fs = std::filesystem;
  write_file_atomically(folder / "file", "old");
  fs::permissions(folder / "file", fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("file", folder / "link");
  write_file_atomically(folder / "link", "new");
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(read_file(folder / "file") == "new");
  CHECK(fs::status(folder / "file").permissions() == (fs::perms::owner_read | fs::perms::owner_write));

  // Also where the file is still to come, and through several links.
  fs::create_directory(folder / "elsewhere");
  fs::create_symlink("elsewhere/new", folder / "first");
  fs::create_symlink("first", folder / "second");
  write_file_atomically(folder / "second", "there");
  CHECK(fs::is_symlink(folder / "first"));
  CHECK(fs::is_symlink(folder / "second"));
  CHECK(read_file(folder / "elsewhere/new") == "there");
  fs::create_symlink("round", folder / "circle");
  fs::create_symlink("circle", folder / "round");
  check_contains(refusal([&] { write_file_atomically(folder / "circle", ""); }, "c"), "round in a circle");
  CHECK(fs::is_symlink(folder / "circle"));

  check_contains(refusal([&] { write_file_atomically(folder / "no/file", ""); }, "no/file"), "folder exists");
  check_contains(refusal([&] { write_file_atomically(folder.path.string(), ""); }, ""), "Is a directory");
  check_contains(refusal([&] { write_file_atomically("/dev/null", ""); }, "/dev/null"), "device");
}

TEST_CASE("npy: every bit survives a round trip, and the bytes are NumPy's") {
  const TemporaryFolder folder;
  for (const Array& array : {odd_f32(), odd_f64(), Array::of({1, -2, 3, 4, 5, 6}, {2, 3}, DType::i32),
                             Array::scalar(-0.0), Array::zeros(DType::f32, {0, 4})}) {
    write_npy(folder / "x.npy", array);
    CHECK(read_npy(folder / "x.npy").same_bits(array));
  }
  write_npy(folder / "x.npy", Array::zeros(DType::f32, {3}));
  // What numpy.save writes for numpy.zeros(3, 'f4').
  std::string dictionary = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
  dictionary.resize(117, ' ');
  CHECK(read_file(folder / "x.npy") == npy_with(dictionary + "\n", std::string(12, '\0')));
  check_contains(refusal([&] { write_npy(folder / "the-file", Array()); }), "holds no numbers");
}

TEST_CASE("npy: headers are read as Python would, and refused with the right words") {
  const auto read = [](const std::string& bytes) { return parse_npy(bytes_of(bytes), "the-file"); };
  const std::string two = raw(1.0, 2.0), rest = "'fortran_order': False, 'shape': (2,), }";
  CHECK(read(npy_with("{\"shape\":(1L,2L),'fortran_order':False,'descr':\"<f8\"}\n", two)).shape() ==
        Shape{1, 2});
  CHECK(read(npy_with("{'descr': '<f8', " + rest, two, 2)).to_vector() == std::vector<double>{1, 2});
  const std::string i8 = "{'descr': '<i8', " + rest;
  CHECK(read(npy_with(i8, raw(std::int64_t{-5}, std::int64_t{6}))).to_vector() == std::vector<double>{-5, 6});

  const std::string good = npy_with("{'descr': '<f8', " + rest, two);
  const auto header = [&](const std::string& text) { return npy_with(text, two); };
  const std::vector<Damage> cases{
      {"", "does not begin with"},
      {"PK\x03\x04 a zip", "is this a .npy file?"},
      {good.substr(0, 9), "truncated: it ends at byte 9"},
      {good.substr(0, 30), "truncated: byte 8 asks for a header of"},
      {good.substr(0, good.size() - 1), "truncated: <f8 [2] takes 16 data bytes, file has 15"},
      {good + "x", "takes 16 data bytes, file has 17"},
      {npy_with("", "", 3), "version 3.0"},
      {std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12), "header of 4294967295 bytes"},
      {npy_with(i8, raw(std::int64_t{-2147483649}, std::int64_t{0})), "i8 value -2147483649 at index 0"},
      {header("{'descr': '>f8', " + rest), "dtype '>f8' cannot be read"},
      {header("{'descr': '<f8', 'fortran_order': True, 'shape': (2,), }"), "Fortran order"},
      {header("{'descr': '<f8', 'fortran_order': Maybe, 'shape': (2,), }"), "True or False is missing"},
      {header("{'descr': '<f8', 'fortran_order': False, 'shape': (2), }"), "a tuple of one needs a comma"},
      {header("{'descr': '<f8', 'fortran_order': False, 'shape': (-2,), }"), "extent"},
      {header("{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999,), }"), "extent"},
      {header("{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }"),
       "larger than any memory"},
      {header("{'descr': '<f8', 'fortran_order': False, 'shape': (0, 70368744177664), }"),
       "larger than any memory"},
      {header("{'descr': '<f8', 'fortran_order': False}"), "lacks"},
      {header("{'descr': '<f8', 'descr': '<f4', " + rest), "two entries named 'descr'"},
      {header("{'other': '<f8', " + rest), "unknown key 'other'"},
      {header("{'descr': [('a', '<f8')], " + rest), "malformed at byte 20"},
      {header("{'descr': '<f8"), "does not end"},
      {header("{'descr': '<f8', " + rest + " x"), "text after the dictionary"}};
  for (const Damage& damage : cases) check_contains(refusal([&] { read(damage.bytes); }), damage.words);
}

namespace {

// A device whose memory the host reads wrongly: every bit is turned around on the way there and back.
class FarMemory : public DeviceMemory {
 public:
  std::string name() const override { return "far"; }
  std::string description() const override { return "far away"; }
  Device::Memory memory() const override { return {}; }
  Backend& backend() override { throw DeviceError("it runs nothing"); }
  std::byte* allocate(std::size_t bytes) override { return new std::byte[bytes]; }
  void release(std::byte* address) noexcept override { delete[] address; }
  void upload(const std::byte* from, std::byte* to, std::size_t bytes) override { turn(from, to, bytes); }
  void download(const std::byte* from, std::byte* to, std::size_t bytes) override { turn(from, to, bytes); }
  void copy(const std::byte* from, std::byte* to, std::size_t bytes) override {
    std::memmove(to, from, bytes);
  }
  void zero(std::byte* at, std::size_t bytes) override { std::memset(at, 0xff, bytes); }
  void random(const RandomFill&, std::int64_t, std::byte*) override { throw DeviceError("it draws nothing"); }
  void synchronize() override {}

 private:
  static void turn(const std::byte* from, std::byte* to, std::size_t bytes) {
    std::transform(from, from + bytes, to, [](std::byte b) { return ~b; });
  }
};

}  // namespace

TEST_CASE("numbers that lie on a device are written as those that do not") {
  const TemporaryFolder folder;
  const Array here = random(f64({2, 3}), 1), there = here.to(Device(std::make_shared<FarMemory>()));
  REQUIRE(!there.device().is_cpu());
  write_npy(folder / "x.npy", there);
  CHECK(read_npy(folder / "x.npy").same_bits(here));
  const SafeTensors far{{{"x", there}}, {}}, near{{{"x", here}}, {}};
  CHECK(format_safetensors(far) == format_safetensors(near));
  write_safetensors(folder / "x.safetensors", far);
  CHECK(read_safetensors(folder / "x.safetensors").tensors.at("x").same_bits(here));
}
