#include "programs/programs.h"

int main(int argc, char** argv) { return nestgrad::programs::evaluate(argc, argv); }
