// Images with what is seen on them. Everywhere in this folder images are f32 [count, height, width, channels], values
// in [0, 1] with 0 as the ground of written characters, and one image is [height, width, channels].
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/array.h"

namespace nestgrad {

struct LabelledImages {
  Array images;                      // f32 [n, height, width, channels]
  Array labels;                      // i32 [n], indices of classes
  std::vector<std::string> classes;  // their names
};

// Two files of MNIST, packed by gzip or not (engine/io/idx.h): images [n, height, width] become one channel, v / 255;
// labels [n] are digits, the classes "0" to "9". IoError for a file that is damaged or of another kind, ConfigError
// where the two do not belong together.
LabelledImages read_mnist(const std::filesystem::path& images, const std::filesystem::path& labels);

// A folder of folders of PNG files (engine/io/png.h). Each folder that has some is a class; its name is its path from
// the outermost, as "Balinese/character01" in Omniglot. Classes are sorted by the bytes of their names, the images of a
// class by those of their files'. Values are the files': what is written black on white, as in Omniglot, has 1 as its
// ground. Hidden files and folders, links to folders, and files that are no PNG are passed over. IoError for a folder
// that is not there, a file that is damaged, and a folder in which, or below which, there is no image; ConfigError for
// images of different sizes, and images that lie in no class.
LabelledImages read_image_folder(const std::filesystem::path& path);

// MNIST's two files in a folder, the images first: their names end in images-idx3-ubyte and labels-idx1-ubyte, or in these and
// .gz; what stands before is the same of both, where there are several. Hidden files are passed over. Nothing: there is neither.
// ConfigError for several such pairs, and for files of which no two belong together.
std::optional<std::pair<std::filesystem::path, std::filesystem::path>> mnist_files(
    const std::filesystem::path& folder);
// A folder of either kind: read_mnist of its files, if there are such, else read_image_folder.
LabelledImages read_labelled_images(const std::filesystem::path& folder);

// Those with these labels, in the order of `classes`, which are their classes from then on: a part of the data, or few
// of many classes for an episode. ConfigError for a label that there is not, or twice.
LabelledImages with_classes(const LabelledImages& all, const std::vector<std::int32_t>& classes);
// Those with these numbers, from 0, in that order; one may be asked for twice. ConfigError for a number that there is not. All
// three: DTypeError, ShapeError for arrays that are not those of labelled images.
LabelledImages picked(const LabelledImages& all, const std::vector<std::int64_t>& numbers);
// A batch: `count` of them at random, any of them several times. Image i depends on (seed, first + i) alone:
//
//   const LabelledImages batch = drawn(all, 32, seed, 32 * step);
LabelledImages drawn(const LabelledImages& all, std::int64_t count, std::uint64_t seed, std::uint64_t first);

// How many labels i32 [..] are the class with the largest of f32 logits [.., classes], the first of equal ones. ShapeError,
// DTypeError; ValueError for logits that are NaN.
std::int64_t right_answers(const Array& logits, const Array& labels);

}  // namespace nestgrad
