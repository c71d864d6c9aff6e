// Labelled images from files, and images of another size.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "engine/core/random.h"
#include "engine/io/file.h"
#include "engine/io/png.h"
#include "models/images/glyphs.h"
#include "models/images/labelled_images.h"
#include "models/images/resized.h"
#include "tests/image_files.h"
#include "tests/temporary_folder.h"

using namespace nestgrad;
using namespace nestgrad::testing;
namespace fs = std::filesystem;

namespace {

struct ImageFolder : TemporaryFolder {
  void write(const std::string& file, double value, std::int64_t height = 2) const {
    fs::create_directories((path / file).parent_path());
    write_file_atomically((path / file).string(), format_png(Array::full(DType::f32, {height, 3, 1}, value)));
  }
};

template <class E, class Fn>
std::string one_line(Fn fn) {
  try {
    fn();
  } catch (const E& error) {
    const std::string message = error.what();
    CHECK(message.find('\n') == message.npos);
    return message;
  }
  FAIL_CHECK("nothing of this kind was thrown");
  return "";
}

void check_contains(const std::string& message, const std::string& words) {
  CHECK_MESSAGE(message.find(words) != message.npos, fmt::format("'{}' is not in '{}'", words, message));
}

}  // namespace

TEST_CASE("images: MNIST's two files become images and digits") {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& bytes) {
    write_file_atomically(folder / name, bytes);
    return folder / name;
  };
  const std::string images =
                        write("images", gzipped(idx_with(8, {2, 1, 3}, std::string("\0\x33\xff\1\2\3", 6)))),
                    labels = write("labels", idx_with(8, {2}, "\7\1"));
  const LabelledImages read = read_mnist(images, labels);
  CHECK(read.images.shape() == Shape{2, 1, 3, 1});
  CHECK(read.images.at(0) == 0);
  CHECK(read.images.at(1) == doctest::Approx(0.2));
  CHECK(read.images.at(2) == 1);
  CHECK(read.labels.to_vector() == std::vector<double>{7, 1});
  CHECK(read.classes.size() == 10);
  CHECK(read.classes[7] == "7");

  check_contains(one_line<IoError>([&] { read_mnist(labels, images); }), "is no shape of images");
  check_contains(one_line<IoError>([&] { read_mnist(images, images); }), "is no shape of labels");
  check_contains(
      one_line<ConfigError>([&] { read_mnist(images, write("three", idx_with(8, {3}, "\1\2\3"))); }),
      "has 2 images");
  check_contains(one_line<ConfigError>([&] { read_mnist(images, write("ten", idx_with(8, {2}, "\1\x0a"))); }),
                 "label 10");
}

TEST_CASE("images: files of images and labels are taken in pairs, and two pairs are refused") {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, char label) {
    write_file_atomically(folder / (name + "-images-idx3-ubyte"),
                          idx_with(8, {1, 1, 1}, std::string(1, label)));
    write_file_atomically(folder / (name + "-labels-idx1-ubyte"), idx_with(8, {1}, std::string(1, label)));
  };
  write("a", 3);
  write_file_atomically(folder / "b-labels-idx1-ubyte", idx_with(8, {1}, std::string(1, '\5')));
  CHECK(read_labelled_images(folder.path).labels.at(0) == 3);
  write("b", 5);
  check_contains(one_line<ConfigError>([&] { read_labelled_images(folder.path); }), "holds 2 pairs of files");
}

TEST_CASE("images: files that do not belong together are refused, hidden ones passed over") {
  const TemporaryFolder folder;
  const std::string one(1, '\1');
  const auto images = [&](const std::string& name) {
    write_file_atomically(folder / (name + "images-idx3-ubyte"), idx_with(8, {1, 1, 1}, one));
  };
  const auto labels = [&](const std::string& name) {
    write_file_atomically(folder / (name + "labels-idx1-ubyte"), idx_with(8, {1}, one));
  };
  images("train-"), images("val-");
  const auto refused = [&] {
    check_contains(one_line<ConfigError>([&] { read_labelled_images(folder.path); }), "no two of one name");
  };
  refused();
  labels("t10k-");
  refused();
  labels("val-");
  images("._val-"), labels("._val-");
  CHECK(mnist_files(folder.path)->first.filename() == "val-images-idx3-ubyte");
}

TEST_CASE("images: a pipe among files is refused, and not waited for") {
  const ImageFolder folder;
  folder.write("a/1.png", 1);
  REQUIRE(mkfifo((folder / "a/2.png").c_str(), 0600) == 0);
  check_contains(one_line<IoError>([&] { read_labelled_images(folder.path); }), "a/2.png: it is a pipe");
  REQUIRE(mkfifo((folder / "train-images-idx3-ubyte").c_str(), 0600) == 0);
  check_contains(one_line<IoError>([&] { read_labelled_images(folder.path); }), "ubyte: it is a pipe");
}

TEST_CASE("images: a set put together by hand is looked at before it is read") {
  const auto set = [](const Spec& images, const Spec& labels) {
    return LabelledImages{
        Array::zeros(images.dtype, images.shape), Array::zeros(labels.dtype, labels.shape), {"a"}};
  };
  const auto refused = [&]<class E>(E, const Spec& images, const Spec& labels) {
    const LabelledImages all = set(images, labels);
    one_line<E>([&] { picked(all, {0}); });
    one_line<E>([&] { drawn(all, 2, 1, 0); });
    one_line<E>([&] { with_classes(all, {0}); });
  };
  const ShapeError shape("");
  const DTypeError type("");
  refused(shape, {DType::f32, {8, 2, 2, 1}}, {DType::i32, {4}});
  refused(shape, {DType::f32, {8, 2, 2, 1}}, {DType::i32, {16}});
  refused(shape, {DType::f32, {8, 2, 2}}, {DType::i32, {8}});
  refused(type, {DType::f64, {8, 2, 2, 1}}, {DType::i32, {8}});
  refused(type, {DType::i32, {8, 2, 2, 1}}, {DType::i32, {8}});
  refused(type, {DType::f32, {8, 2, 2, 1}}, {DType::f32, {8}});
}

TEST_CASE("images: what is not a number stays one where digits are placed") {
  LabelledImages digits{Array::full(DType::f32, {1, 8, 8, 1}, std::numeric_limits<double>::quiet_NaN()),
                        Array::zeros(DType::i32, {1}),
                        {"a"}};
  const std::vector<double> all = placed(digits, {.distractors = 0}, 1, 0, 1).images.to_vector();
  CHECK(std::ranges::any_of(all, [](double x) { return std::isnan(x); }));
}

TEST_CASE("images: batches are drawn by seed and number alone, and right answers counted") {
  LabelledImages all{Array::zeros(DType::f32, {5, 2, 2, 1}),
                     Array::of({0, 1, 2, 3, 4}, {5}, DType::i32),
                     {"a", "b", "c", "d", "e"}};
  for (std::int64_t i = 0; i < 20; ++i)
    all.images.as<float>()[static_cast<std::size_t>(i)] = static_cast<float>(i / 4);
  const LabelledImages some = picked(all, {4, 0, 4});
  CHECK(some.labels.to_vector() == std::vector<double>{4, 0, 4});
  CHECK(some.images.at(0) == 4);
  CHECK(some.images.at(4) == 0);
  check_contains(one_line<ConfigError>([&] { picked(all, {5}); }), "there is no image 5; there are 5");
  const LabelledImages batch = drawn(all, 40, 1, 100), rest = drawn(all, 30, 1, 110);
  for (std::int64_t i = 0; i < 30; ++i) CHECK(batch.labels.at(i + 10) == rest.labels.at(i));
  CHECK_FALSE(drawn(all, 40, 2, 100).labels.same_bits(batch.labels));
  for (std::int64_t i = 0; i < 40; ++i) CHECK(batch.images.at(4 * i) == batch.labels.at(i));
  const Array logits = Array::of({1, 3, 2, 5, 5, 0}, {2, 3}, DType::f32);
  CHECK(right_answers(logits, Array::of({1, 0}, {2}, DType::i32)) == 2);  // of equal ones the first
  CHECK(right_answers(logits, Array::of({1, 1}, {2}, DType::i32)) == 1);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  one_line<ValueError>([&] {
    right_answers(Array::of({0, nan, 1, 0}, {2, 2}, DType::f32), Array::of({0, 0}, {2}, DType::i32));
  });
  one_line<ShapeError>([&] { right_answers(Array(DType::f32, {2, 0}), Array::of({0, 0}, {2}, DType::i32)); });
  one_line<ShapeError>([&] { right_answers(logits, Array::of({1}, {1}, DType::i32)); });
  one_line<DTypeError>([&] { right_answers(logits.cast(DType::f64), Array::of({1, 0}, {2}, DType::i32)); });
}

TEST_CASE("images: a folder's folders are classes, in sorted order, however deep") {
  const ImageFolder folder;
  folder.write("b/2.png", 1);
  folder.write("b/10.png", 0.2);
  folder.write("a/y/1.PNG", 0.4);
  folder.write("a/x/1.Png", 0.6);
  folder.write("a-b/1.png", 0.8);
  std::ofstream(folder / "a/notes.txt") << "not an image";
  std::ofstream(folder / ".hidden") << "no";
  fs::create_directory_symlink(folder.path, folder / "loop");
  const LabelledImages read = read_image_folder(folder.path);
  CHECK(read.classes == std::vector<std::string>{"a-b", "a/x", "a/y", "b"});
  CHECK(read.labels.to_vector() == std::vector<double>{0, 1, 2, 3, 3});
  CHECK(read.images.shape() == Shape{5, 2, 3, 1});
  std::vector<double> firsts;
  for (std::int64_t i = 0; i < 5; ++i) firsts.push_back(std::round(10 * read.images.at(6 * i)));
  CHECK(firsts == std::vector<double>{8, 6, 4, 2, 10});

  const LabelledImages part = with_classes(read, {3, 1});
  CHECK(part.classes == std::vector<std::string>{"b", "a/x"});
  CHECK(part.labels.to_vector() == std::vector<double>{0, 0, 1});
  CHECK(part.images.shape() == Shape{3, 2, 3, 1});
  CHECK(part.images.at(12) == doctest::Approx(0.6).epsilon(0.01));
  one_line<ConfigError>([&] { with_classes(read, {4}); });
  one_line<ConfigError>([&] { with_classes(read, {1, 1}); });
}

TEST_CASE("images: a folder that is none of classes of images of one size is refused in one line") {
  const ImageFolder folder;
  check_contains(one_line<IoError>([&] { read_image_folder(folder / "none"); }), "No such file");
  check_contains(one_line<IoError>([&] { read_image_folder(folder.path); }), "no PNG file in it");
  folder.write("a/1.png", 1);
  fs::create_directory(folder / "empty");
  check_contains(one_line<IoError>([&] { read_image_folder(folder.path); }), "empty: there is no PNG file");
  folder.write("empty/1.png", 1, 3);
  check_contains(one_line<ConfigError>([&] { read_image_folder(folder.path); }), "need images of one size");
  folder.write("empty/1.png", 1);
  read_image_folder(folder.path);
  folder.write("1.png", 1);
  check_contains(one_line<ConfigError>([&] { read_image_folder(folder.path); }), "1.png lies in no class");
  fs::remove(folder / "1.png");
  std::ofstream(folder / "a/2.png") << "broken";
  check_contains(one_line<IoError>([&] { read_image_folder(folder.path); }),
                 "a/2.png: the file does not begin");
}

TEST_CASE("images: resizing averages areas, interpolates between centres, and keeps what is constant") {
  const auto line = [](const std::vector<double>& values, std::int64_t width) {
    return resized(Array::of(values, {1, std::ssize(values), 1}, DType::f32), 1, width).to_vector();
  };
  CHECK(line({1, 3, 5, 7}, 2) == std::vector<double>{2, 6});
  CHECK(line({0, 3, 6}, 2) == std::vector<double>{1, 5});  // (0 + 3 / 2) / 1.5
  CHECK(line({1, 2, 3}, 3) == std::vector<double>{1, 2, 3});
  CHECK(line({0, 4}, 4) == std::vector<double>{0, 1, 3, 4});
  CHECK(line({7}, 3) == std::vector<double>{7, 7, 7});

  const Array images = random_uniform({DType::f32, {3, 9, 7, 2}}, 0, 1, 5, 0);
  const Array small = resized(images, 4, 5);
  double before = 0, after = 0;
  for (const double v : images.to_vector()) before += v / (3 * 9 * 7 * 2);
  for (const double v : small.to_vector()) after += v / (3 * 4 * 5 * 2);
  CHECK(after == doctest::Approx(before).epsilon(1e-6));
  // Each image by itself.
  Array second(DType::f32, {9, 7, 2});
  std::copy_n(images.data() + second.bytes(), second.bytes(), second.data());
  const Array alone = resized(second, 4, 5);
  CHECK(std::equal(alone.data(), alone.data() + alone.bytes(), small.data() + alone.bytes()));
  one_line<ShapeError>([&] { resized(images, 0, 5); });
  one_line<ShapeError>([&] { resized(Array::zeros(DType::f32, {3, 3}), 2, 2); });
  one_line<DTypeError>([&] { resized(Array::zeros(DType::f64, {3, 3, 1}), 2, 2); });
}
