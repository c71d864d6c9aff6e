#include "programs/programs.h"

int main(int argc, char** argv) { return nestgrad::programs::loops_ahead(argc, argv); }
