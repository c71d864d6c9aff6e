#include <nestgrad/programs/programs.h>

#include "forgetful_memory.h"

int main(int argc, char** argv) {
  nestgrad::ttt::register_system(forgetful_memory());
  return nestgrad::programs::train_lm(argc, argv);
}
