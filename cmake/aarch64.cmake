# SPDX-License-Identifier: Apache-2.0
# Cross build for 64-bit Arm on Debian against the libraries of scripts/sysroot.sh; tests run under qemu's user emulation.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
get_filename_component(root ${CMAKE_CURRENT_LIST_DIR}/../build/sysroot-arm64 ABSOLUTE)
set(ENV{PKG_CONFIG_LIBDIR} ${root}/usr/lib/aarch64-linux-gnu/pkgconfig:${root}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${root})
set(CMAKE_FIND_ROOT_PATH ${root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
# The compiler brings its own C library headers; what the sysroot adds is searched after them, and its libraries are found again at link time.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${root}/usr/lib/aarch64-linux-gnu -Wl,-rpath-link,${root}/lib/aarch64-linux-gnu")
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${root})
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
