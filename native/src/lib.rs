//! Holdfast's hot functions on bytes, compiled.
//!
//! Each function here does what the Python function of the same name does, for the same arguments. Python is the
//! specification: it holds all state, makes all decisions and does all I/O. See `holdfast/native.py`.
//!
//!     buffers        Python objects as slices: the only unsafe code
//!     fields         big-endian numbers at any byte of a slice
//!     layout         the bytes of a stored record and of a batch's item
//!     properties     a message's properties
//!     java_hash      Java's `String.hashCode`
//!     key_scan       the keys of many log records
//!     key_links      new keys into the slot table of the key index
//!     batch_records  the records of a batch that is split
//!     record_fields  the fixed fields of many records, one column per field

mod batch_records;
mod buffers;
mod fields;
mod java_hash;
mod key_links;
mod key_scan;
mod layout;
mod properties;
mod record_fields;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

/// Rises whenever a function changes its meaning or its arguments. `holdfast/native.py` has the same number.
const INTERFACE: u32 = 1;

#[pyfunction]
fn scan_keys<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    position: i64,
    records_max: i64,
) -> PyResult<(Bound<'py, PyBytes>, i64, i64)> {
    let scan = buffers::with_bytes(data, |data| key_scan::scan(data, position, records_max))?;
    let stop = i64::try_from(scan.at).ok().and_then(|at| position.checked_add(at));
    let stop = stop.ok_or_else(|| PyValueError::new_err("the position does not fit into 64 bits"))?;
    Ok((PyBytes::new(py, &scan.keys), stop, scan.count))
}

#[pyfunction]
fn link_keys<'py>(
    py: Python<'py>,
    table: &Bound<'py, PyAny>,
    dirty: &Bound<'py, PyAny>,
    block_slots: usize,
    keys: &[u8],
    known: i32,
    begin_ms: i64,
) -> PyResult<(Bound<'py, PyBytes>, usize)> {
    let linked = buffers::with_two_mut(table, dirty, |table, dirty| {
        key_links::link(table, dirty, block_slots, keys, known, begin_ms)
    })?;
    let linked = linked.ok_or_else(|| PyValueError::new_err("keys, table and dirty blocks do not fit together"))?;
    Ok((PyBytes::new(py, &linked.items), linked.used))
}

type PackedItems<'py> = (Bound<'py, PyList>, Bound<'py, PyList>, Vec<i64>, usize);

#[pyfunction]
#[allow(clippy::too_many_arguments)] // as in Python
fn pack_items<'py>(
    py: Python<'py>,
    batch: &Bound<'py, PyAny>,
    head: &[u8],
    topic_part: &[u8],
    offset: i64,
    position: i64,
    end: i64,
    size_max: usize,
) -> PyResult<Option<PackedItems<'py>>> {
    if !batch_records::is_head(head) {
        return Err(PyValueError::new_err("the head has another size than its host bits state"));
    }
    let shared = batch_records::Shared { head, topic_part, end, size_max };
    let packed = buffers::with_bytes(batch, |batch| batch_records::pack(batch, &shared, offset, position))?;
    let Some(packed) = packed else { return Ok(None) };
    let pieces = PyList::new(py, [PyBytes::new(py, &packed.records)])?;
    let entries = PyList::new(py, packed.entries.iter().map(|entry| PyBytes::new(py, entry)))?;
    Ok(Some((pieces, entries, packed.positions, packed.body_size)))
}

#[pyfunction]
fn measure_records<'py>(py: Python<'py>, block: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let Some(columns) = buffers::with_bytes(block, record_fields::measure)? else { return Ok(None) };
    PyTuple::new(py, columns.in_order().map(|column| PyBytes::new(py, column))).map(Some)
}

#[pyfunction]
fn match_bodies<'py>(
    py: Python<'py>,
    block: &Bound<'py, PyAny>,
    starts: &[u8],
    sizes: &[u8],
    crcs: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let matches = buffers::with_bytes(block, |block| record_fields::match_bodies(block, starts, sizes, crcs))?;
    let matches = matches.ok_or_else(|| PyValueError::new_err("the columns do not fit together, or the block"))?;
    Ok(PyBytes::new(py, &matches))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("INTERFACE", INTERFACE)?;
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(scan_keys, module)?)?;
    module.add_function(wrap_pyfunction!(link_keys, module)?)?;
    module.add_function(wrap_pyfunction!(pack_items, module)?)?;
    module.add_function(wrap_pyfunction!(measure_records, module)?)?;
    module.add_function(wrap_pyfunction!(match_bodies, module)?)?;
    Ok(())
}
