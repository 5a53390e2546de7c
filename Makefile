# SPDX-License-Identifier: Apache-2.0
# Thin front: CMake presets build, scripts/ install and run.
.PHONY: all serve test asan tsan clang aarch64 fuzz format style install clean

all:
	@scripts/build.sh release
	@cp -f build/release/m5-infer build/m5-infer

# What a newcomer types: installs what is missing, builds, serves m5-nano. Another model: make serve MODEL=/path PORT=8001 ARGS="--ctx 8192"; MODEL=smollm2 fetches one
serve:
	@scripts/serve.sh "$(MODEL)" "$(PORT)" $(ARGS)

test:
	@scripts/test.sh release

asan:
	@scripts/test.sh asan

tsan:
	@scripts/test.sh tsan

clang:
	@scripts/test.sh clang

aarch64:
	@scripts/test.sh aarch64

# Coverage-guided fuzzing, one minute a target: make fuzz SECONDS=600
fuzz:
	@scripts/fuzz.sh "$(SECONDS)"

format:
	@scripts/format.sh

style:
	@scripts/deps.sh style && tools/style.sh && tools/layers.sh

install: all
	cmake --install build/release

clean:
	rm -rf build
