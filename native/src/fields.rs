//! Big-endian numbers at any byte of a slice. None: it would reach beyond the end.

/// Return the *N* bytes that begin at *at*.
pub fn array_at<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..)?.first_chunk::<N>().copied()
}

pub fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    array_at(data, at).map(u16::from_be_bytes)
}

pub fn i32_at(data: &[u8], at: usize) -> Option<i32> {
    array_at(data, at).map(i32::from_be_bytes)
}

pub fn i64_at(data: &[u8], at: usize) -> Option<i64> {
    array_at(data, at).map(i64::from_be_bytes)
}

/// Return a size that is stored as a signed number; None also if it is negative.
pub fn size_at(data: &[u8], at: usize) -> Option<usize> {
    i32_at(data, at).and_then(|size| usize::try_from(size).ok())
}
