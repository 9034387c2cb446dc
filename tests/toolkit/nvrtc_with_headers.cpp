#include <cstdio>
#include <string>
#include <sys/stat.h>
extern "C" int nvrtcInstallBundledHeaders(const char* folder, unsigned, const char** log) {
    if (FAILS) { *log = "no room"; return 7; }
    mkdir((std::string(folder) + "/crt").c_str(), 0700);
    std::fclose(std::fopen((std::string(folder) + "/crt/mma.h").c_str(), "w"));
    std::fclose(std::fopen((std::string(folder) + "/mma.h").c_str(), "w"));
    return 0;
}
