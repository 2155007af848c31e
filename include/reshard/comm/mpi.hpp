// Ranks as MPI processes with host memory: the session, its communicators and its control channel.
#pragma once

#include "mpi/communicator.hpp"
#include "mpi/control.hpp"
#include "mpi/mode.hpp"
#include "mpi/session.hpp"
