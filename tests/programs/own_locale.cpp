// own_locale FOLDER: a main of one's own whose locale writes numbers with a comma; the program that it runs reads and writes
// them with a point all the same, and leaves the locale as it was. SKIPPED where no such locale can be made.
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "programs/programs.h"

namespace {

bool has_comma() { return std::string(std::localeconv()->decimal_point) == ","; }

int train(const std::string& folder, const std::string& rate) {
  std::istringstream call(
      "train_lm --data " + folder + "/text --out " + folder + "/run --lr " + rate +
      " --steps 2 --batch 2 --context 16 --width 8 --layers 1 --heads 1 --validation-windows 2");
  std::vector<std::string> words(std::istream_iterator<std::string>(call), {});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return nestgrad::programs::train_lm(static_cast<int>(words.size()), argv.data());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string make = "localedef -i de_DE -f UTF-8 " + folder + "/de_DE.UTF-8 > /dev/null 2>&1";
  static_cast<void>(std::system(make.c_str()));
  setenv("LOCPATH", folder.c_str(), 1);
  if (!std::setlocale(LC_ALL, "de_DE.UTF-8") || !has_comma()) {
    std::printf("SKIPPED: localedef makes no locale with a comma\n");
    return 0;
  }
  std::ofstream text(folder + "/text");
  for (int i = 0; i < 200; ++i) text << "to be or not to be, that is the question\n";
  text.close();
  const int with_comma = train(folder, "0,003"), with_point = train(folder, "0.003");
  std::ifstream metrics(folder + "/run/metrics.jsonl");
  const std::string written((std::istreambuf_iterator<char>(metrics)), std::istreambuf_iterator<char>());
  const bool holds =
      with_comma == 2 && with_point == 0 && written.find("\"loss\":") != written.npos && has_comma();
  std::printf("%s: 0,003 gave %d, 0.003 gave %d\n", holds ? "all of it holds" : "FAIL", with_comma,
              with_point);
  return holds ? 0 : 1;
}
