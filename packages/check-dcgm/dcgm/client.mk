# Compiles dcgmi and the libdcgm.so that it loads out of DCGM's source, and nothing else of it: no engine, no diagnostic, no CUDA.
#
#   make -f client.mk SOURCE=FOLDER [FMT=FOLDER] HEADERS="FOLDER …" OUT=FOLDER VERSION=4.4.2 COMMIT=ID
#
# One file for both generations: what one of them lacks is an empty wildcard. `FMT`: fmt's source, where
# Debian's is too old (as it is for 4, and too new its successor for 3); `HEADERS`: those of plog and TCLAP.
major := $(firstword $(subst ., ,$(VERSION)))
build := $(OUT)/build
newer := $(dir $(firstword $(MAKEFILE_LIST)))newer
in = $(wildcard $(addprefix $(SOURCE)/,$(1)))

library := $(call in,dcgmlib/src/*.cpp dcgmlib/src/*.c common/*.cpp common/DcgmThread/*.cpp common/ChildProcess/*.cpp \
  common/RemoteConn/*.cpp common/transport/*.cpp common/serialize/*.cpp modules/DcgmModule*.cpp modules/core/*.cpp modules/common/*.cpp \
  sdk/nvidia/nvml/nvml_loader/*.cpp sdk/nvidia/nvml/common/*.c)
client := $(call in,dcgmi/*.cpp common/*.cpp common/DcgmThread/*.cpp common/ChildProcess/*.cpp common/serialize/*.cpp common/transport/*.cpp \
  modules/diag/DcgmDiagCommon.cpp modules/mndiag/MnDiagCommon.cpp sdk/nvidia/nvml/common/*.c)

folders := $(shell find $(addprefix $(SOURCE)/,common dcgmlib dcgmi modules nvvs sdk nvml-injection dcgm_config) -type d -not -path '*/tests*' -not -path '*/mock*')
includes := -I/usr/include/jsoncpp $(addprefix -isystem ,$(FMT:%=%/include) $(HEADERS)) -I$(SOURCE) $(addprefix -I,$(folders))
defines := -DDCGM_API_EXPORT=1 -DDCGM_BUILD_VGPU_MODULE -DDRIVER_VERSION='"418"' -DDRIVER_MAJOR_VERSION='"418"' -DNV_LINUX=1 -DNV_UNIX=1 \
  -D_UNIX=1 -DPLOG_LOCAL -D__CUDA_API_VERSION_INTERNAL=1 -DINJECTION_LIBRARY_AVAILABLE $(if $(FMT),,-DFMT_HEADER_ONLY)
flags := -O1 -fPIC -fvisibility=hidden -w $(defines) $(includes)
cxxflags := -std=gnu++2b -fvisibility-inlines-hidden -fmax-errors=1 -include $(newer)/library.hpp -idirafter $(newer) $(flags)
libraries := -Wl,--as-needed -ljsoncpp -levent_core -levent_extra -levent_pthreads -lyaml-cpp -ldl -lrt -lpthread -Wl,-rpath,'$$ORIGIN/../lib'

objects = $(patsubst $(SOURCE)/%,$(build)/%.o,$(1))
both := $(build)/info.cpp.o $(if $(FMT),$(build)/fmt.o)

$(OUT)/bin/dcgmi: $(call objects,$(client)) $(both) $(OUT)/lib/libdcgm.so.$(major)
	@mkdir -p $(@D)
	g++ -o $@ $^ $(libraries)

$(OUT)/lib/libdcgm.so.$(major): $(call objects,$(library)) $(both)
	@mkdir -p $(@D)
	g++ -shared -Wl,-soname,libdcgm.so.$(major) -Wl,--version-script,$(SOURCE)/dcgmlib/dcgmlib.linux_def -o $@ $^ $(libraries)

$(build)/info.cpp.o: $(SOURCE)/common/DcgmBuildInfo.cpp.in
	@mkdir -p $(@D)
	sed 's|@DCGM_BUILD_INFO@|version:$(VERSION);arch:$(shell uname -m);buildtype:client;commit:$(COMMIT)|' $< > $(build)/info.cpp
	g++ $(cxxflags) -c $(build)/info.cpp -o $@

$(build)/fmt.o: $(FMT)/src/format.cc
	@mkdir -p $(@D)
	g++ $(cxxflags) -c $< -o $@

$(build)/%.cpp.o: $(SOURCE)/%.cpp
	@mkdir -p $(@D)
	@g++ $(cxxflags) -c $< -o $@

$(build)/%.c.o: $(SOURCE)/%.c
	@mkdir -p $(@D)
	@gcc $(flags) -c $< -o $@
