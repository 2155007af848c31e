#!/bin/sh
# Runs a command without address space randomization.
exec setarch -R "$@"
