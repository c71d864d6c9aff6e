// nestgrad: everything a user of the library needs.
#pragma once

#include "autograd/custom.h"
#include "autograd/grad.h"
#include "autograd/scan.h"
#include "engine/function.h"
#include "models/decoder.h"
#include "models/language_model.h"
#include "ops/ops.h"
#include "ttt/layer.h"
#include "ttt/learners/linear.h"
#include "ttt/learners/mlp.h"
