// Random programs of the engine; see below what is compared.
#include "tests/fuzz/campaign.h"

int main(int argc, char** argv) {
  return nestgrad::fuzz::run_campaign(argc, argv, "programs_fuzz", "Random programs.", [](nestgrad::fuzz::Draws&) {});
}
