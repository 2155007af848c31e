// Everything that needs only the standard library: policies, layout, engine, optimizers, the one-rank communicator.
// A backend is one more include: reshard/comm/threads.hpp, reshard/comm/mpi.hpp.
#pragma once

#include "core/version.hpp"  // first: it refuses older standards

#include "comm/self.hpp"
#include "core/random.hpp"
#include "engine/model.hpp"
#include "optim/adamw.hpp"
#include "optim/sgd.hpp"
#include "policy/runtime.hpp"
