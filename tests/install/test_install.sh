#!/bin/sh
# test_install.sh: installs into a folder, moves the folder, and builds consumers against it.
# usage: test_install.sh BUILD CMAKE CC pkgconfig|cmake
#
# SPDX-License-Identifier: Apache-2.0
set -eu
build=$1 cmake=$2 cc=$3 kind=$4
here=$(cd "$(dirname "$0")" && pwd)
work=$build/tests/install_$kind
rm -rf "$work"
mkdir -p "$work"
DESTDIR='' "$cmake" --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/prefix" # nothing in it may remember where it was installed

if [ "$kind" = cmake ]; then
    "$cmake" -S "$here" -B "$work/build" -DCMAKE_C_COMPILER="$cc" \
        -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/configure.log"
    "$cmake" --build "$work/build" >"$work/build.log"
    "$work/build/consumer_mxattn"
    "$work/build/consumer_mxattn_static"
    exit
fi

command -v pkg-config >/dev/null || { echo "SKIP no pkg-config on this machine"; exit 77; }
pc=$(find "$work/prefix" -name mxattn.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
lib=$(pkg-config --variable=libdir mxattn)
cflags="-std=c11 -Wall -Wextra -Wpedantic -Werror $(pkg-config --cflags mxattn)"
# shellcheck disable=SC2086,SC2046
"$cc" $cflags "$here/consumer.c" -o "$work/shared" $(pkg-config --libs mxattn)
LD_LIBRARY_PATH=$lib "$work/shared"
# shellcheck disable=SC2086,SC2046
"$cc" $cflags "$here/consumer.c" -o "$work/static" "$lib/libmxattn.a" $(
    pkg-config --static --libs mxattn | sed 's/-lmxattn //')
"$work/static"
if ldd "$work/static" | grep -q mxattn; then
    echo "the static consumer links the shared library"
    exit 1
fi
