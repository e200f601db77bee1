//! The bytes of a stored record (`wire/records/record.py`) and of a batch's item (`wire/records/batch.py`).

use crate::fields::{i32_at, i64_at, size_at, u16_at};

pub const MAGIC_V1: i32 = 0xDAA3_20A7_u32 as i32;
pub const MAGIC_V2: i32 = 0xDAA3_20AB_u32 as i32;
pub const FIXED_SIZE: usize = 88;
pub const RECORD_SIZE_MIN: usize = FIXED_SIZE + 1 + 2;
pub const HOSTS_V6: i32 = 0x10 | 0x20;
pub const COMPRESSED: i32 = 0x1;
pub const TRANSACTION_MASK: i32 = 0xC;
pub const TRANSACTION_ROLLBACK: i32 = 0xC;
pub const INNER_BATCH: i32 = 0x40 | 0x80;

/// A record of the usual kind: IPv4 hosts, and a topic with a length of one byte.
pub struct PlainRecord<'a> {
    pub size: usize,
    pub position: i64,
    pub sys_flag: i32,
    pub store_ms: i64,
    pub body: &'a [u8],
    pub topic: &'a [u8],
    pub properties: &'a [u8],
}

/// Return the plain record at *at*; None if there is no whole one whose parts add up to its size.
pub fn plain_record(data: &[u8], at: usize) -> Option<PlainRecord<'_>> {
    let record = data.get(at..)?;
    let size = size_at(record, 0)?;
    let record = record.get(..size)?;
    let sys_flag = i32_at(record, 36)?;
    if i32_at(record, 4)? != MAGIC_V1 || sys_flag & HOSTS_V6 != 0 {
        return None;
    }
    let variable = record.get(FIXED_SIZE..)?;
    let (body, rest) = variable.split_at_checked(size_at(record, FIXED_SIZE - 4)?)?;
    let (topic_size, rest) = rest.split_first()?;
    let (topic, rest) = rest.split_at_checked(usize::from(*topic_size))?;
    let properties = rest.get(2..)?;
    if usize::from(u16_at(rest, 0)?) != properties.len() {
        return None;
    }
    Some(PlainRecord {
        size,
        position: i64_at(record, 28)?,
        sys_flag,
        store_ms: i64_at(record, 56)?,
        body,
        topic,
        properties,
    })
}

/// One message of a batch.
pub struct Item<'a> {
    pub size: usize,
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: &'a [u8],
}

/// Return the item with which *data* begins; None if its sizes do not add up.
pub fn first_item(data: &[u8]) -> Option<Item<'_>> {
    let size = size_at(data, 0)?;
    let item = data.get(..size)?;
    let (body, rest) = item.get(20..)?.split_at_checked(size_at(item, 16)?)?;
    let properties = rest.get(2..)?;
    if usize::from(u16_at(rest, 0)?) != properties.len() {
        return None;
    }
    Some(Item { size, flag: i32_at(item, 12)?, body, properties })
}
