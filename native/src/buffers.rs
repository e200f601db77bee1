//! Python objects as slices of bytes: the only unsafe code of this crate.
//!
//! A slice is valid while the buffer is held and nobody writes to it. Both hold here: the buffer lives until the work
//! is done, and the work runs under the interpreter's lock and calls no Python code. The bytes of a mapped file are
//! those of a confirmed log, which nobody rewrites.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Run *work* on the bytes of `bytes`, `bytearray`, `memoryview` and the like.
pub fn with_bytes<T>(object: &Bound<'_, PyAny>, work: impl FnOnce(&[u8]) -> T) -> PyResult<T> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(work(bytes.as_bytes()));
    }
    match PyBuffer::<u8>::get(object) {
        Ok(buffer) => on_buffer(&buffer, work),
        // Arrow's bytes are signed.
        Err(_) => on_buffer(&PyBuffer::<i8>::get(object)?, work),
    }
}

/// Run *work* on a buffer of elements of one byte.
fn on_buffer<E: Element, T>(buffer: &PyBuffer<E>, work: impl FnOnce(&[u8]) -> T) -> PyResult<T> {
    if buffer.item_size() != 1 || !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the bytes are not contiguous"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(work(&[]));
    }
    // SAFETY: the buffer is contiguous, its elements are bytes, it is not empty (so its pointer is not null), and it is
    // released only after the work.
    #[allow(unsafe_code)]
    let bytes = unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) };
    Ok(work(bytes))
}

/// Run *work* on two writable buffers that do not overlap.
pub fn with_two_mut<T>(
    first: &Bound<'_, PyAny>,
    second: &Bound<'_, PyAny>,
    work: impl FnOnce(&mut [u8], &mut [u8]) -> T,
) -> PyResult<T> {
    let (first, second) = (PyBuffer::<u8>::get(first)?, PyBuffer::<u8>::get(second)?);
    for buffer in [&first, &second] {
        if buffer.readonly() || !buffer.is_c_contiguous() || buffer.len_bytes() == 0 {
            return Err(PyBufferError::new_err("a buffer is read-only, empty, or not contiguous"));
        }
    }
    let (low, high) = if first.buf_ptr() <= second.buf_ptr() { (&first, &second) } else { (&second, &first) };
    if (high.buf_ptr() as usize).abs_diff(low.buf_ptr() as usize) < low.len_bytes() {
        return Err(PyBufferError::new_err("the buffers overlap"));
    }
    // SAFETY: both buffers are contiguous, writable and not empty, their elements are bytes, they do not overlap, and
    // they are released only after the work.
    #[allow(unsafe_code)]
    let (first_bytes, second_bytes) = unsafe {
        (
            std::slice::from_raw_parts_mut(first.buf_ptr().cast::<u8>(), first.len_bytes()),
            std::slice::from_raw_parts_mut(second.buf_ptr().cast::<u8>(), second.len_bytes()),
        )
    };
    Ok(work(first_bytes, second_bytes))
}
