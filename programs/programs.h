// The programs of the project as functions, for mains of one's own: what a program of yours registers
// (ttt/system.h), they know.
//
//   int main(int argc, char** argv) {
//     nestgrad::ttt::register_system(my_system());
//     return nestgrad::programs::train_lm(argc, argv);
//   }
//
// Each reads its command line, prints results to standard output, progress and errors to standard error, and
// returns what main returns: 0 done, 1 the run failed, 2 a wrong call. None throws. `--help` of each says what
// it does. Link nestgrad::programs.
#pragma once

namespace nestgrad::programs {

int train_lm(int argc, char** argv);     // trains a language model whose layers are learners
int generate(int argc, char** argv);     // continues a text with a trained model
int evaluate(int argc, char** argv);     // scores a text, also with a model that learns while it is scored
int inspect(int argc, char** argv);      // one page on where a layer's outer gradient comes from
int learners(int argc, char** argv);     // lists, explains and proves learners
int reference(int argc, char** argv);    // numbers of a layer's inner loop, for authors of kernels
int verify(int argc, char** argv);       // holds a kernel's numbers to them
int loops_ahead(int argc, char** argv);  // compiles the loops of learners, for machines without a compiler

}  // namespace nestgrad::programs
