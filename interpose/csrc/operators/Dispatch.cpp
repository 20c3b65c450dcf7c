// Registration of the boxed kernel for every operator at the CUDA key, and of a fallback for operators loaded later.
#include "operators/Dispatch.h"

#include "core/Registry.h"
#include "core/Config.h"
#include "operators/OperatorCall.h"
#include "core/QuietWarnings.h"

#include <c10/util/Exception.h>

#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

namespace phantom {
namespace {

using c10::DispatchKey;

class VirtualKernel final : public c10::OperatorKernel {
 public:
  explicit VirtualKernel(const OperatorInfo& info) : info_(info) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    runVirtual(info_, *stack);
  }

 private:
  const OperatorInfo& info_;
};

void runFallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  runVirtual(operatorInfo(op), *stack);
}

// Kept for the process's life: deregistering at exit would race with threads that still run.
std::vector<c10::RegistrationHandleRAII>& registrations() {
  static auto* all = new std::vector<c10::RegistrationHandleRAII>;
  return *all;
}

std::set<std::string>& handWritten() {
  static auto* names = new std::set<std::string>;
  return *names;
}

// Operators with a composite kernel for every backend and a kernel of their own in the CUDA build.
bool cudaHasItsOwn(const std::string& base) {
  static const std::set<std::string> names = {"convolution",
                                              "_convolution",
                                              "convolution_backward",
                                              "_chunk_cat",
                                              "_grouped_mm",
                                              "split_with_sizes_copy",
                                              "native_group_norm",
                                              "native_layer_norm",
                                              "_fused_adam",
                                              "addr",
                                              "_batch_norm_with_update_functional",
                                              "all",
                                              "any",
                                              "_scaled_grouped_mm",
                                              "_padded_dense_to_jagged_forward"};
  return base.rfind("_foreach_", 0) == 0 || names.count(base) != 0;
}

// Operators whose composite kernel is for backends without one of their own: a CUDA build has a kernel and the autograd
// formula that goes with it (all those of a CUDA wheel of 2.14 are named; another one is taken over by its CUDA key).
bool cudaReplacesComposite(const std::string& base) {
  if (base == "_fused_rms_norm") return !config().blocking_launches;  // the CPU has no kernel of it either
  return base == "silu_backward" || base == "mish_backward";
}

bool takesOrMakesTensors(const c10::FunctionSchema& schema) {
  auto mentions = [](const c10::Argument& a) { return a.type()->str().find("Tensor") != std::string::npos; };
  for (const auto& a : schema.arguments()) {
    if (mentions(a)) return true;
  }
  for (const auto& r : schema.returns()) {
    if (mentions(r)) return true;
  }
  return false;
}

bool wantsKernel(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const std::string& full = schema.name();
  const std::string base = full.substr(full.find("::") + 2);
  if (full.rfind("aten::", 0) != 0) return false;  // other libraries: their composites run, the fallback takes the rest
  if (op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) {
    return op.hasKernelForDispatchKey(DispatchKey::CUDA) || cudaReplacesComposite(base);
  }
  if (!takesOrMakesTensors(schema)) return false;
  if (cudaHasItsOwn(base)) return true;
  // A CUDA build brings real kernels, some of operators whose Meta kernel is Python and not there yet: none may run.
  if (op.hasKernelForDispatchKey(DispatchKey::CUDA)) return true;
  if (op.hasKernelForDispatchKey(DispatchKey::CPU)) return true;
  if (op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd)) return false;
  return op.hasKernelForDispatchKey(DispatchKey::Meta);
}

std::mutex g_infos_mutex;
std::unordered_map<std::string, std::unique_ptr<OperatorInfo>>* g_infos =
    new std::unordered_map<std::string, std::unique_ptr<OperatorInfo>>;

int64_t g_kernels = 0;

void install() { installDispatch(); }
const Installer install_dispatch(40, &install);

}  // namespace

const OperatorInfo& operatorInfo(const c10::OperatorHandle& op) {
  const std::string name = c10::toString(op.operator_name());
  std::lock_guard<std::mutex> hold(g_infos_mutex);
  std::unique_ptr<OperatorInfo>& info = (*g_infos)[name];
  if (!info) info = std::make_unique<OperatorInfo>(op);
  return *info;
}

void registerKernel(const char* name, DispatchKey key, c10::KernelFunction kernel) {
  static QuietWarnings quiet;
  c10::WarningUtils::WarningHandlerGuard no_warnings(&quiet);
  const std::string text(name);
  const size_t dot = text.find('.');
  c10::OperatorName op_name("aten::" + text.substr(0, dot), dot == std::string::npos ? "" : text.substr(dot + 1));
  TORCH_CHECK(c10::Dispatcher::singleton().findSchema(op_name), "this torch has no operator ", op_name);
  registrations().push_back(
      c10::Dispatcher::singleton().registerImpl(op_name, key, std::move(kernel), std::nullopt, nullptr, "phantom"));
  if (key == DispatchKey::CUDA) handWritten().insert(c10::toString(op_name));
}

void registerViews();
void registerFactories();
void registerCopies();
void registerMetaKernels();
void registerAttention();
void registerRecurrent();
void registerValueReaders();
void registerSparse();

void installDispatch() {
  registerMetaKernels();
  registerViews();
  registerFactories();
  registerCopies();
  registerAttention();
  registerRecurrent();
  registerValueReaders();
  registerSparse();
  static QuietWarnings quiet;
  c10::WarningUtils::WarningHandlerGuard no_warnings(&quiet);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || handWritten().count(c10::toString(name)) != 0 || !wantsKernel(*op)) continue;
    auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<VirtualKernel>(operatorInfo(*op)));
    registrations().push_back(
        dispatcher.registerImpl(name, DispatchKey::CUDA, std::move(kernel), std::nullopt, nullptr, "phantom"));
    ++g_kernels;
  }
  registrations().push_back(dispatcher.registerFallback(
      DispatchKey::CUDA, c10::KernelFunction::makeFromBoxedFunction<&runFallback>(), "phantom"));
}

int64_t registeredKernels() { return g_kernels; }

}  // namespace phantom
