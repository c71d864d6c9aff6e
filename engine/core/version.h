// The version of these headers; the build takes its own from here.
#pragma once

#define NESTGRAD_VERSION_MAJOR 0
#define NESTGRAD_VERSION_MINOR 1
#define NESTGRAD_VERSION_PATCH 0

#define NESTGRAD_VERSION_TEXT_OF(major, minor, patch) #major "." #minor "." #patch
#define NESTGRAD_VERSION_TEXT(major, minor, patch) NESTGRAD_VERSION_TEXT_OF(major, minor, patch)
// As text: "0.1.0".
#define NESTGRAD_VERSION \
  NESTGRAD_VERSION_TEXT(NESTGRAD_VERSION_MAJOR, NESTGRAD_VERSION_MINOR, NESTGRAD_VERSION_PATCH)
