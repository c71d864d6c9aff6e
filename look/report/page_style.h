// The style sheet and the script of a report page.
#pragma once

#include <string>

namespace nestgrad::drawing {

std::string page_style();
// Without it the page works too: it unfolds views that links point to, or all of them at once.
std::string page_script();

}  // namespace nestgrad::drawing
