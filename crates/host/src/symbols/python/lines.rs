//! Line tables of code objects, in the three forms that CPython has had: from the place of an instruction to its line. Pure.
//!
//! A table is a copy of another process's memory: any bytes give a line or none, in time linear in their number.

/// The form of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `co_lnotab` of 3.8 and 3.9 (Objects/lnotab_notes.txt): pairs of steps, in bytes and in lines.
    Steps,
    /// `co_linetable` of 3.10 (the same file, PEP 626): pairs of a length in bytes and a step in lines, which the length comes after.
    Ranges,
    /// `co_linetable` since 3.11 (Objects/locations.md): entries of one or more bytes, the first of which has its highest bit set.
    Locations,
}

/// A range of 3.10 that has no line.
const NO_LINE: i8 = -128;

/// The line of the instruction that begins at `offset`, in bytes from the begin of the code. `first` is the line of the function. None
/// where the table does not reach that far, or has no line for it.
pub fn line(form: Form, table: &[u8], first: i32, offset: u32) -> Option<i32> {
    match form {
        Form::Steps => Some(by_steps(table, first, offset)),
        Form::Ranges => by_ranges(table, first, offset),
        Form::Locations => by_locations(table, first, offset),
    }
}

/// The table is the function's from its begin to its end, so the last line holds for what is behind it.
fn by_steps(table: &[u8], first: i32, offset: u32) -> i32 {
    let (mut line, mut at) = (first, 0_u32);
    for step in table.chunks_exact(2) {
        at = at.saturating_add(step[0].into());
        if at > offset {
            break;
        }
        line = line.wrapping_add(i32::from(step[1].cast_signed()));
    }
    line
}

fn by_ranges(table: &[u8], first: i32, offset: u32) -> Option<i32> {
    let (mut line, mut end) = (first, 0_u32);
    for range in table.chunks_exact(2) {
        let step = range[1].cast_signed();
        if step != NO_LINE {
            line = line.wrapping_add(step.into());
        }
        end = end.saturating_add(range[0].into());
        if offset < end {
            return (step != NO_LINE).then_some(line);
        }
    }
    None
}

/// Kinds of entries, by the four bits behind the highest one: these have a step of 0, 1 or 2, and those before them none.
const ONE_LINE_FIRST: u8 = 10;
const ONE_LINE_LAST: u8 = 12;
const NO_COLUMNS: u8 = 13;
const LONG: u8 = 14;
/// Instructions are counted in units of this many bytes.
const UNIT_BYTES: u32 = 2;

fn by_locations(table: &[u8], first: i32, offset: u32) -> Option<i32> {
    let (mut line, mut end, mut rest) = (first, 0_u32, table);
    while let [head, behind @ ..] = rest {
        let kind = head >> 3 & 15;
        let step = match kind {
            ONE_LINE_FIRST..=ONE_LINE_LAST => (kind - ONE_LINE_FIRST).into(),
            NO_COLUMNS | LONG => signed(behind),
            _ => 0,
        };
        line = line.wrapping_add(step);
        end = end.saturating_add((u32::from(head & 7) + 1) * UNIT_BYTES);
        if offset < end {
            return (kind <= LONG).then_some(line);
        }
        // The next entry begins at the next byte with the highest bit.
        let next = behind.iter().position(|byte| byte & 0x80 != 0).unwrap_or(behind.len());
        rest = &behind[next..];
    }
    None
}

/// A number of six bits in each byte, the lowest first; the seventh bit says that more follow, and the lowest of all is the sign.
fn signed(bytes: &[u8]) -> i32 {
    let (mut number, mut shift) = (0_u32, 0);
    for byte in bytes {
        number |= u32::from(byte & 0x3f).checked_shl(shift).unwrap_or(0);
        shift += 6;
        if byte & 0x40 == 0 {
            break;
        }
    }
    let size = (number >> 1).cast_signed();
    if number & 1 != 0 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the function `view`, which is in line 2 of its file, has loops, a call over several lines, a jump back and empty lines:
    ///
    /// ```python
    ///
    /// def view(orders):
    ///     total = 0
    ///     for order in orders:
    ///         total += (
    ///             order.price
    ///             * order.count
    ///         )
    ///
    ///
    ///     if total > 3:
    ///         raise ValueError(
    ///             total)
    ///     return [
    ///         total
    ///         for _ in range(3)]
    /// ```
    const FIRST: i32 = 2;

    /// Where its lines begin up to 3.10: the versions have the same instructions.
    const LINES: [(u32, i32); 14] = [
        (0, 3),
        (4, 4),
        (12, 5),
        (14, 6),
        (18, 7),
        (22, 6),
        (24, 5),
        (30, 11),
        (38, 12),
        (40, 13),
        (42, 12),
        (46, 14),
        (56, 16),
        (62, 14),
    ];

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |byte: u8| (byte as char).to_digit(16).expect("a hexadecimal digit") as u8;
        hex.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
    }

    /// Compares with what `dis.findlinestarts()` and `co_positions()` of that version say: where a line begins, up to the end.
    fn check(form: Form, table: &str, lines: &[(u32, i32)], end: u32) {
        let table = bytes(table);
        for (index, (begin, expected)) in lines.iter().enumerate() {
            let next = lines.get(index + 1).map_or(end, |next| next.0);
            for offset in (*begin..next).step_by(2) {
                let found = line(form, &table, FIRST, offset);
                assert_eq!(found, (*expected > 0).then_some(*expected), "{form:?} at {offset}");
            }
        }
    }

    #[test]
    fn tables_of_3_8_and_3_9() {
        check(Form::Steps, "0001040108010201040104ff02ff06060801020102ff04020a0206fe", &LINES, 68);
    }

    #[test]
    fn tables_of_3_10() {
        let table = "0401080102010401040102ff06ff08060201020104ff0a02060206fe";
        check(Form::Ranges, table, &LINES, 68);
        assert_eq!(line(Form::Ranges, &bytes(table), FIRST, 68), None, "behind the end");
        // A range without a line keeps the count.
        assert_eq!(line(Form::Ranges, &bytes("040102800201"), 1, 4), None);
        assert_eq!(line(Form::Ranges, &bytes("040102800201"), 1, 6), Some(3));
    }

    #[test]
    fn tables_of_3_11() {
        let lines = [
            (0, 0),
            (2, 2),
            (4, 3),
            (8, 4),
            (16, 5),
            (18, 6),
            (30, 7),
            (42, 6),
            (46, 5),
            (54, 11),
            (66, 12),
            (78, 13),
            (80, 12),
            (96, 14),
            (104, 16),
            (132, 14),
        ];
        let table = "f88000d80c0d8045d81117f00004050af00004050a8805d8080dd80c118c4bd80e138c6bf103010d1af10303090a88058805f00c0008\
                     0d887182798079dd0e18d80c11f103010f13f400010f13f000010913f004020c1bf000020c1bf000020c1bf000020c1be5111690719\
                     1189418f005020c1bf100020c1bf400020c1bf00002051b";
        check(Form::Locations, table, &lines, 150);
    }

    #[test]
    fn tables_of_3_12() {
        let lines = [
            (0, 2),
            (2, 3),
            (6, 4),
            (16, 5),
            (18, 6),
            (40, 7),
            (62, 6),
            (66, 5),
            (74, 4),
            (76, 11),
            (86, 12),
            (96, 13),
            (98, 12),
            (108, 16),
            (128, 14),
            (142, 16),
            (144, 15),
            (150, 14),
            (158, 0),
            (162, 14),
        ];
        let table = "8000d80c0d8045d81117f20004050a8805d8080dd80c118f4b894bd80e138f6b896bf103010d1af10303090a8905f00304050af00e000\
                     80d88718279dc0e18d80c11f303010f13f000010913f40800121790719318f605020c1be00c0df20300090ef203020c1bf00002051b\
                     f9f200020c1b";
        check(Form::Locations, table, &lines, 168);
    }

    #[test]
    fn tables_of_3_13() {
        let lines = [
            (0, 2),
            (2, 3),
            (6, 4),
            (16, 5),
            (18, 6),
            (40, 7),
            (62, 6),
            (66, 5),
            (76, 4),
            (80, 11),
            (92, 12),
            (102, 13),
            (104, 12),
            (114, 16),
            (136, 14),
            (144, 16),
            (150, 15),
            (158, 16),
            (162, 14),
            (168, 0),
            (172, 14),
        ];
        let table = "8000d80c0d8045db11178805d8080dd80c118f4b894bd80e138f6b896bf103010d1af10303090a8a05f103001218f00e00080d8871837\
                     9dc0e18d80c11f303010f13f000010f13f40800121790719418f305020c1be111198841f30300090ed91119f105020c1bf00002051b\
                     f9f200020c1b";
        check(Form::Locations, table, &lines, 178);
    }

    #[test]
    fn numbers_of_several_bytes() {
        assert_eq!([&[0][..], &[2], &[3], &[]].map(signed), [0, 1, -1, 0]);
        // 100 << 1 is 200: the low six bits are 8, and 3 follows.
        assert_eq!(signed(&[0x48, 0x03]), 100);
        assert_eq!(signed(&[0x49, 0x03]), -100);
        assert_eq!(signed(&[0x7f; 40]), -i32::MAX, "no longer than 32 bits");
    }

    #[test]
    fn any_bytes_end() {
        let mut seed = 11_u64;
        for length in 0..3000_usize {
            let table: Vec<u8> = (0..length % 200)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (seed >> 40) as u8
                })
                .collect();
            for form in [Form::Steps, Form::Ranges, Form::Locations] {
                let far = line(form, &table, i32::MAX - 3, u32::MAX);
                assert!(form == Form::Steps || far.is_none());
                line(form, &table, i32::MIN, length as u32);
            }
        }
    }
}
