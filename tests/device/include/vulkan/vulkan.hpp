// Found before the system's header of this name, which it includes. It adds two structures that Vulkan headers before 1.3.272
// (Debian 12) lack and llama.cpp names. They configure validation layers, which are off.
#pragma once

#include_next <vulkan/vulkan.hpp>

#include <cstdint>
#include <vector>

#if VK_HEADER_VERSION < 272
namespace VULKAN_HPP_NAMESPACE {
enum class LayerSettingTypeEXT { eBool32 = 0 };

struct LayerSettingEXT {
    const char *pLayerName;
    const char *pSettingName;
    LayerSettingTypeEXT type;
    uint32_t valueCount;
    const void *pValues;
};

struct LayerSettingsCreateInfoEXT {
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> &settings)
        : settingCount(static_cast<uint32_t>(settings.size())), pSettings(settings.data()) {}

    VkStructureType sType = static_cast<VkStructureType>(1000496000);
    const void *pNext = nullptr;
    uint32_t settingCount;
    const LayerSettingEXT *pSettings;
};
}  // namespace VULKAN_HPP_NAMESPACE
#endif
