// What ATen's CPU library asks about CUDA: at::CUDAHooksInterface.
//
// ATen caches its hooks object while torch is imported, before this extension exists. Registering a class under the same
// name is ignored (CPU wheel) or aborts (CUDA wheel), so an object of ours is constructed over the cached one: neither has
// data members, only a table of virtual functions.
#include "memory/Allocator.h"
#include "memory/AddressSpace.h"
#include "core/Registry.h"
#include "core/Config.h"
#include "core/Device.h"
#include "device/Generator.h"
#include "memory/HostMemory.h"
#include "time/Session.h"
#include "time/Timeline.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>

#include <new>
#include <string>
#include <typeinfo>

namespace phantom {
namespace {

// Library versions of PyTorch's CUDA 12.8 build of these releases.
constexpr long kCudnnVersion = 91002;  // 9.10.2
constexpr long kCudnnFrontend = 11200;
constexpr long kCudaRuntime = 12080;

struct VirtualHooks final : at::CUDAHooksInterface {
  void init() const override { ensureSession(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return defaultGenerator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<VirtualGenerator>(device < 0 ? currentDevice() : device);
  }
  c10::Device getDeviceFromPtr(void* data) const override {
    const c10::DeviceIndex device = deviceOfAddress(data);
    TORCH_CHECK(device >= 0,
                "The specified pointer resides on host memory and is not registered with any CUDA device.");
    return c10::Device(c10::kCUDA, device);
  }
  bool isPinnedPtr(const void* data) const override { return isPinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinnedAllocator(); }
  at::Allocator* getCUDADeviceAllocator() const override { return deviceAllocator(); }

  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return config().device_count > 0; }
  bool hasCUDA() const override { return config().device_count > 0; }
  bool hasCUDART() const override { return true; }
  bool hasMAGMA() const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool hasCuSOLVER() const override { return true; }
  bool hasCuBLASLt() const override { return true; }
  bool hasROCM() const override { return false; }
  bool hasCKSDPA() const override { return false; }
  bool hasCKGEMM() const override { return false; }
  bool compiledWithCuDNN() const override { return true; }
  bool compiledWithMIOpen() const override { return false; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return true; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return config().device.major >= 8; }
  bool supportsBFloat16RNNWithCuDNN() const override { return config().device.major >= 8; }
  long versionCuDNN() const override { return kCudnnVersion; }
  long versionRuntimeCuDNN() const override { return kCudnnVersion; }
  long versionCuDNNFrontend() const override { return kCudnnFrontend; }
  long versionCUDART() const override { return kCudaRuntime; }
  std::string showConfig() const override {
    return "  - CUDA Runtime 12.8 (simulated by phantom)\n  - CuDNN 9.10.2 (simulated by phantom)\n";
  }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }  // CUDNN_BN_MIN_EPSILON since cuDNN 7.5
  int64_t cuFFTGetPlanCacheMaxSize(c10::DeviceIndex) const override { return 4096; }
  void cuFFTSetPlanCacheMaxSize(c10::DeviceIndex, int64_t) const override {}
  int64_t cuFFTGetPlanCacheSize(c10::DeviceIndex) const override { return 0; }
  void cuFFTClearPlanCache(c10::DeviceIndex) const override {}

  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return device >= 0 && device < config().device_count;
  }
  int getNumGPUs() const override { return config().device_count; }
  c10::DeviceIndex deviceCount() const override { return c10::DeviceIndex(config().device_count); }
  c10::DeviceIndex current_device() const override { return currentDevice(); }
  c10::DeviceIndex getCurrentDevice() const override { return currentDevice(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { phantom::setCurrentDevice(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex old = currentDevice();
    if (device < 0) return -1;
    phantom::setCurrentDevice(device);
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  void deviceSynchronize(c10::DeviceIndex device) const override {
    ensureSession();
    synchronize(deviceTail(device < 0 ? currentDevice() : device), "torch.cuda.synchronize");
  }
};

const Installer install_hooks(30, installHooks);

}  // namespace

void installHooks() {
  auto& cached = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  static_assert(sizeof(VirtualHooks) == sizeof(at::CUDAHooksInterface) && sizeof(VirtualHooks) == sizeof(void*),
                "the hooks must consist of their table of virtual functions only");
  const std::string type = typeid(cached).name();
  TORCH_CHECK(type == typeid(at::CUDAHooksInterface).name() || type == "N2at4cuda6detail9CUDAHooksE" ||
                  type == typeid(VirtualHooks).name(),
              "phantom cannot replace the CUDA hooks of this PyTorch: they are of an unknown type ", type);
  new (static_cast<void*>(&cached)) VirtualHooks();
  const auto& now = at::detail::getCUDAHooks();
  TORCH_CHECK(now.hasCUDA() && now.deviceCount() == config().device_count && now.getNumGPUs() == config().device_count,
              "phantom's CUDA hooks were not taken over by this PyTorch");
}

}  // namespace phantom
