// Ranks as MPI processes with host memory: the session, its communicators and its control channel.
#pragma once

#include "../core/version.hpp"  // first: it refuses older standards

#include "mpi/communicator.hpp"
#include "mpi/control.hpp"
#include "mpi/mode.hpp"
#include "mpi/session.hpp"
