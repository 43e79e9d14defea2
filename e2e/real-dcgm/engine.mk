# What client.mk leaves out, and real-dcgm runs: the engine, its modules, nvvs with the tests that need no CUDA, and the NVML that answers what
# a file says. Read after client.mk, with the same variables:
#
#   make -f client.mk -f engine.mk SOURCE=FOLDER … OUT=FOLDER VERSION=4.4.2 COMMIT=ID engine
#
# Nothing is optimized: it is compiled once, and runs for seconds. What most files include is read once.
cxxflags := -include $(build)/most.hpp $(cxxflags) -O0

shared := $(call in,common/*.cpp common/DcgmThread/*.cpp common/ChildProcess/*.cpp common/RemoteConn/*.cpp common/transport/*.cpp \
  common/serialize/*.cpp sdk/nvidia/nvml/common/*.c)
nvml := $(call in,sdk/nvidia/nvml/nvml_loader/*.cpp)
module := $(call in,modules/DcgmModule.cpp modules/common/*.cpp)
modules := diag nvswitch sysmon
switches := $(call in,sdk/nvidia/nscq/dlwrap/*.c sdk/nvidia/nvsdm/loader/*.cpp)
diagnostic := $(call in,nvvs/src/*.cpp)
plugins := $(call in,nvvs/plugin_src/software/*.cpp nvvs/plugin_src/common/*.cpp)
injection := $(call in,nvml-injection/src/*.cpp)

lib = $(OUT)/lib/lib$(1).so.$(major)
libdcgm := $(call lib,dcgm)

.PHONY: engine
engine: $(OUT)/bin/dcgmi $(OUT)/bin/nv-hostengine $(foreach m,$(modules),$(call lib,dcgmmodule$(m))) $(OUT)/bin/nvvs $(OUT)/lib/libnvml_injection.so.1 \
  $(OUT)/bin/plugins/cuda12/libstand.so.$(major)

$(OUT)/bin/nv-hostengine: $(call objects,$(call in,hostengine/src/*.cpp) $(shared)) $(both) $(libdcgm)
	g++ -o $@ $^ $(libraries)

$(OUT)/bin/nvvs: $(call objects,$(diagnostic) $(shared) $(nvml)) $(both) $(if $(call in,nvvs/src/FallbackDiagConfig.cpp.in),$(build)/fallback.cpp.o) $(libdcgm)
	g++ -rdynamic -o $@ $^ $(libraries)

$(call lib,dcgmmodule%): $(libdcgm)
	g++ -shared -Wl,--version-script,$(SOURCE)/modules/dcgm_modules.linux_def -o $@ $(filter-out $<,$^) $< $(libraries)

$(foreach m,$(modules),$(eval $(call lib,dcgmmodule$(m)): $(call objects,$(call in,modules/$(m)/*.cpp) $(module) $(shared) $(nvml) $(if $(filter nvswitch,$(m)),$(switches))) $(both)))

$(OUT)/lib/libnvml_injection.so.1: $(call objects,$(injection) $(shared)) $(both) $(libdcgm)
	g++ -shared -Wl,--version-script,$(SOURCE)/nvml-injection/src/nvml-injection.linux_defs -o $@ $^ $(libraries)

# Owner and mode of a plugin must be those of nvvs.
$(OUT)/bin/plugins/cuda12/libstand.so.$(major): $(dir $(lastword $(MAKEFILE_LIST)))stand.cpp $(both) $(libdcgm)
	@mkdir -p $(@D) $(OUT)/bin/plugins/cudaless
	g++ $(cxxflags) -shared -o $@ $^ $(libraries)

$(build)/fallback.cpp.o: $(SOURCE)/nvvs/src/FallbackDiagConfig.cpp.in $(SOURCE)/nvvs/diag-skus.yaml.in
	python3 -c 'import sys; t, y = (open(f).read() for f in sys.argv[1:]); y = y.replace("@ONLY@", ""); \
	print(t.replace("@FALLBACK_DIAG_YAML_CONTENTS@", y.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n")))' $^ > $(build)/fallback.cpp
	g++ $(cxxflags) -c $(build)/fallback.cpp -o $@

# As DCGM's own build has it.
$(call objects,$(injection)): cxxflags += -DNVML_NO_UNVERSIONED_FUNC_DEFS -fvisibility=default
# Compilers before GCC 13 refuse static_assert(false) in a branch that no type takes.
$(call objects,$(call in,nvvs/src/PluginLib.cpp nvvs/src/PluginTest.cpp)): cxxflags += '-Dstatic_assert(...)='

everything := $(call objects,$(filter %.cpp,$(sort $(library) $(client) $(shared) $(nvml) $(module) $(diagnostic) $(plugins) $(injection) \
  $(call in,hostengine/src/*.cpp $(foreach m,$(modules),modules/$(m)/*.cpp)))))
$(everything) $(both): | $(build)/most.hpp.gch

$(build)/most.hpp.gch: $(newer)/library.hpp
	@mkdir -p $(@D)
	for header in '"$<"' '<DcgmLogging.h>' '<json/json.h>' '<fmt/ranges.h>' '<filesystem>' '<fstream>' '<iostream>' '<map>' '<thread>' '<unordered_set>'; do \
	  echo "#include $$header"; done > $(build)/most.hpp
	g++ $(subst -include $(build)/most.hpp,,$(cxxflags)) -x c++-header $(build)/most.hpp -o $@
