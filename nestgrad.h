// nestgrad: everything a user of the library needs.
#pragma once

#include "autograd/custom.h"
#include "autograd/grad.h"
#include "autograd/scan.h"
#include "engine/function.h"
#include "ops/ops.h"
