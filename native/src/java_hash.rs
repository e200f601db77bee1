//! Java's `String.hashCode`: over UTF-16 units, wrapping in 32 bits.

/// Return the hash of a text followed by *text* (UTF-8); *hash* is the first text's. Invalid UTF-8 counts as
/// replacement characters.
pub fn extend_hash(hash: u32, text: &[u8]) -> u32 {
    if text.is_ascii() {
        return text.iter().fold(hash, |hash, unit| extend_by(hash, u16::from(*unit)));
    }
    String::from_utf8_lossy(text).encode_utf16().fold(hash, extend_by)
}

fn extend_by(hash: u32, unit: u16) -> u32 {
    hash.wrapping_mul(31).wrapping_add(u32::from(unit))
}

/// Return the hash as the key index stores it: Java's `Math.abs`, but 0 for the smallest integer.
pub fn to_index_hash(hash: u32) -> u32 {
    if hash < 0x8000_0000 { hash } else { hash.wrapping_neg() & 0x7FFF_FFFF }
}
