// The tensor behind a Python object.
#pragma once

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

namespace phantom {

inline const at::Tensor& tensorOf(const pybind11::handle& object) {
  TORCH_CHECK(THPVariable_Check(object.ptr()), "expected a tensor");
  return THPVariable_Unpack(object.ptr());
}

}  // namespace phantom
