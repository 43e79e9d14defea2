// A plugin of DCGM 4's diagnostic in place of those that need CUDA: each test of levels 2 to 4 passes, unless a file says otherwise. Only what
// a test finds is ours; what the diagnostic, the engine and dcgmi make of it is theirs.
//
// STAND_RESULTS names the file: a line each, `TEST GPU CODE SEVERITY CATEGORY WORDS`, where GPU may be `-` (nobody's) and CODE `skip` (the words
// become information) or `hang` (until the file is gone; then FILE.hangs is there), both with 0 for SEVERITY and CATEGORY.
#include <PluginInterface.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

static const std::pair<const char *, const char *> TESTS[] = {
    { "memory", "Hardware" },     { "diagnostic", "Hardware" },      { "nvbandwidth", "Hardware" },      { "pulse_test", "Hardware" },
    { "pcie", "Integration" },    { "memory_bandwidth", "Stress" },  { "targeted_stress", "Stress" },    { "targeted_power", "Stress" },
    { "memtest", "Hardware" },
};
static std::map<std::string, std::vector<dcgmGroupEntityPair_t>> ran;

template <size_t Size>
static void Put(char (&to)[Size], const std::string &words)
{
    std::snprintf(to, Size, "%s", words.c_str());
}

extern "C" {

DCGM_PUBLIC_API unsigned int GetPluginInterfaceVersion()
{
    return DCGM_DIAG_PLUGIN_INTERFACE_VERSION;
}

DCGM_PUBLIC_API dcgmReturn_t GetPluginInfo(unsigned int, dcgmDiagPluginInfo_t *info)
{
    Put(info->pluginName, "stand");
    Put(info->description, "Says what a file says");
    info->numTests = 0;
    for (auto const &[name, category] : TESTS)
    {
        auto &test = info->tests[info->numTests++];
        Put(test.testName, name);
        Put(test.description, name);
        Put(test.testCategory, category);
        test.numValidParameters = 0;
        test.targetEntityGroup  = DCGM_FE_GPU;
    }
    return DCGM_ST_OK;
}

DCGM_PUBLIC_API dcgmReturn_t InitializePlugin(dcgmHandle_t,
                                              dcgmDiagPluginStatFieldIds_t *,
                                              void **,
                                              DcgmLoggingSeverity_t,
                                              hostEngineAppenderCallbackFp_t,
                                              dcgmDiagPluginAttr_v1 const *,
                                              HangDetectMonitorPtr)
{
    return DCGM_ST_OK;
}

DCGM_PUBLIC_API dcgmReturn_t ShutdownPlugin(void *)
{
    return DCGM_ST_OK;
}

DCGM_PUBLIC_API void RunTest(char const *test, unsigned int, unsigned int, const dcgmDiagPluginTestParameter_t *, dcgmDiagPluginEntityList_v1 const *on, void *)
{
    for (unsigned int i = 0; i < on->numEntities; i++)
    {
        ran[test].push_back(on->entities[i].entity);
    }
}

DCGM_PUBLIC_API void RetrieveCustomStats(char const *, dcgmDiagCustomStats_t *, void *)
{}

DCGM_PUBLIC_API void RetrieveResults(char const *test, dcgmDiagEntityResults_v2 *results, void *)
{
    for (auto const &entity : ran[test])
    {
        auto &row  = results->results[results->numResults++];
        row.entity = entity;
        row.result = DCGM_DIAG_RESULT_PASS;
    }
    char const *path = std::getenv("STAND_RESULTS");
    std::ifstream file(path ? path : "/dev/null");
    for (std::string line; std::getline(file, line);)
    {
        std::istringstream words(line);
        std::string name, gpu, code, text;
        unsigned int severity = 0, category = 0;
        words >> name >> gpu >> code >> severity >> category >> std::ws;
        std::getline(words, text);
        if (name != test)
        {
            continue;
        }
        if (code == "hang")
        {
            std::ofstream(std::string(path) + ".hangs") << "\n";
            while (access(path, F_OK) == 0)
            {
                usleep(10000);
            }
            continue;
        }
        dcgmGroupEntityPair_t entity { gpu == "-" ? DCGM_FE_NONE : DCGM_FE_GPU, gpu == "-" ? 0 : (unsigned int)std::atoi(gpu.c_str()) };
        for (unsigned int i = 0; i < results->numResults; i++)
        {
            auto &row = results->results[i];
            if (gpu != "-" && row.entity.entityId == entity.entityId)
            {
                row.result = code == "skip" ? DCGM_DIAG_RESULT_SKIP : DCGM_DIAG_RESULT_FAIL;
            }
        }
        if (code == "skip")
        {
            auto &info  = results->info[results->numInfo++];
            info.entity = entity;
            Put(info.msg, text);
        }
        else
        {
            auto &error    = results->errors[results->numErrors++];
            error.entity   = entity;
            error.code     = std::atoi(code.c_str());
            error.severity = severity;
            error.category = category;
            Put(error.msg, text);
        }
    }
}

} // extern "C"
