// Thread-local dispatcher state for running an operator's own Meta or CPU kernel from inside a kernel at the CUDA key.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace phantom {

// No autograd, no autocast, no torch-function mode (a default device, say) of the script.
class PlainDispatch {
 public:
  PlainDispatch()
      : no_autocast_(c10::autocast_dispatch_keyset), disabled_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::ALL_DISABLED);
  }
  ~PlainDispatch() { at::impl::PythonTorchFunctionTLS::set_disabled_state(disabled_); }
  PlainDispatch(const PlainDispatch&) = delete;
  PlainDispatch& operator=(const PlainDispatch&) = delete;

 private:
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::impl::ExcludeDispatchKeyGuard no_autocast_;
  at::impl::TorchFunctionDisabledState disabled_;
};

}  // namespace phantom
