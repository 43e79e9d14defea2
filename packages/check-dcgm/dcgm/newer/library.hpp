// What DCGM takes from the library of newer compilers than Debian 12 has, or gets there by way of other headers. Included before each file.
#pragma once
#include <algorithm>
#include <charconv>
#include <functional>
#include <ranges>
#include <utility>
#include <vector>

#include <unistd.h>

#if __has_include(<format>)
#include <format>
#else
#include <fmt/format.h>
namespace std
{
using fmt::format;
}
#endif

#ifndef __cpp_lib_ranges_enumerate
namespace std::ranges::views
{
template <std::ranges::input_range Range>
auto enumerate(Range &&range)
{
    std::vector<std::pair<std::ptrdiff_t, std::ranges::range_reference_t<Range>>> numbered;
    for (auto &&one : range)
    {
        numbered.emplace_back(numbered.size(), one);
    }
    return numbered;
}
} // namespace std::ranges::views
#endif
