# SPDX-License-Identifier: Apache-2.0
# Thin front: everything is done by CMake presets and scripts/.
.PHONY: all serve test asan tsan format install clean
all:
	@scripts/build.sh release
	@cp -f build/release/m5-infer build/m5-infer
