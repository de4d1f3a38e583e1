//! The part of the kernel's type information that the probes ask for.
//!
//! libbpf looks every structure of the probes up by a walk over all types of the kernel, 150,000 of them, one walk per
//! structure; that took 40 of the 100 ms of CPU time that loading costs. One walk picks the types of all structures at
//! once. Pointers lose what they point to: a relocation never goes through one (each dereference is its own).
//! Format: Documentation/bpf/btf.rst.
use std::collections::HashSet;

const HEADER: usize = 24;
const MAGIC: u16 = 0xeb9f;

/// Kinds of types, from include/uapi/linux/btf.h.
mod kind {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FWD: u32 = 7;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FUNC: u32 = 12;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const FLOAT: u32 = 16;
    pub const DECL_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}

/// Type information with the types called `wanted` and what they are made of, and the numbers that the structures `followed`
/// have in `full`, 0 where there is none. None when `full` is not understood.
pub fn reduce(full: &[u8], wanted: &HashSet<&[u8]>, followed: &[&[u8]]) -> Option<(Vec<u8>, Vec<u32>)> {
    let source = Source::parse(full)?;
    let mut small = Small { source: &source, ids: vec![0; source.offsets.len()], order: Vec::new() };
    let mut followed_ids = vec![0; followed.len()];
    for id in 1..source.offsets.len() as u32 {
        let t = source.get(id)?;
        let named = matches!(t.kind, kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64 | kind::TYPEDEF);
        if !named || t.name == 0 || !wanted.contains(source.name(t.name)?) {
            continue;
        }
        small.add(id);
        let place = followed.iter().position(|name| source.name(t.name) == Some(*name));
        if let Some(place) = place.filter(|place| t.kind == kind::STRUCT && followed_ids[*place] == 0) {
            followed_ids[place] = id;
        }
    }
    small.close()?;
    Some((small.write(full)?, followed_ids))
}

/// The names of the type definitions and enumerations in `types`. None when they are not understood.
pub fn named_types(types: &[u8]) -> Option<Vec<String>> {
    let source = Source::parse(types)?;
    let all = (1..source.offsets.len() as u32).filter_map(|id| source.get(id));
    let names = all.filter(|t| matches!(t.kind, kind::TYPEDEF | kind::ENUM)).filter_map(|t| source.name(t.name));
    Some(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

/// Offsets in the kernel's per-CPU data of the variables called `names`, None for those that are not there. The whole is None when
/// `full` is not understood.
pub fn per_cpu_offsets(full: &[u8], names: &[&str]) -> Option<Vec<Option<u32>>> {
    let source = Source::parse(full)?;
    let mut found = vec![None; names.len()];
    for id in 1..source.offsets.len() as u32 {
        let section = source.get(id)?;
        if section.kind != kind::DATASEC || source.name(section.name)? != b".data..percpu" {
            continue;
        }
        for entry in (0..section.vlen).map(|i| section.at + 12 + 12 * i) {
            let variable = source.get(u32_at(source.types, entry)?)?;
            let name = source.name(variable.name)?;
            if let Some(place) = names.iter().position(|wanted| wanted.as_bytes() == name) {
                found[place] = u32_at(source.types, entry + 4);
            }
        }
    }
    Some(found)
}

/// The offset in bytes of a member of a structure; None when it is not there, or when `full` is not understood.
pub fn member_offset(full: &[u8], structure: &str, member: &str) -> Option<u32> {
    let source = Source::parse(full)?;
    let named = |t: &Type| t.kind == kind::STRUCT && source.name(t.name) == Some(structure.as_bytes());
    let found = (1..source.offsets.len() as u32).filter_map(|id| source.get(id)).find(named)?;
    let members = (0..found.vlen).map(|i| found.at + 12 + 12 * i);
    let at = members
        .into_iter()
        .find(|at| u32_at(source.types, *at).and_then(|name| source.name(name)) == Some(member.as_bytes()))?;
    // In structures with bit fields the size of one is in the upper byte.
    Some((u32_at(source.types, at + 8)? & 0xff_ffff) / 8)
}

struct Type {
    at: usize,
    name: u32,
    kind: u32,
    vlen: usize,
}

struct Source<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Of each type by its id; the first is void.
    offsets: Vec<u32>,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl<'a> Source<'a> {
    fn parse(full: &'a [u8]) -> Option<Self> {
        let magic = u16::from_ne_bytes(full.get(..2)?.try_into().ok()?);
        let field = |at| u32_at(full, at).map(|v| v as usize);
        let header = field(4)?;
        if magic != MAGIC || header < HEADER {
            return None;
        }
        let part = |at: usize, len: usize| full.get(header.checked_add(at)?..header.checked_add(at)?.checked_add(len)?);
        let types = part(field(8)?, field(12)?)?;
        let strings = part(field(16)?, field(20)?)?;
        let mut source = Source { types, strings, offsets: vec![0] };
        let mut at = 0;
        while at < types.len() {
            source.offsets.push(at as u32);
            at += source.at(at)?.len()?;
        }
        (at == types.len()).then_some(source)
    }

    fn at(&self, at: usize) -> Option<Type> {
        let info = u32_at(self.types, at + 4)?;
        Some(Type { at, name: u32_at(self.types, at)?, kind: info >> 24 & 0x1f, vlen: (info & 0xffff) as usize })
    }

    fn get(&self, id: u32) -> Option<Type> {
        self.at(*self.offsets.get(id as usize)? as usize)
    }

    fn name(&self, at: u32) -> Option<&'a [u8]> {
        let rest = self.strings.get(at as usize..)?;
        Some(&rest[..rest.iter().position(|&b| b == 0)?])
    }
}

impl Type {
    /// Bytes of the whole entry.
    fn len(&self) -> Option<usize> {
        Some(match self.kind {
            kind::INT | kind::VAR | kind::DECL_TAG => 16,
            kind::ARRAY => 24,
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 + 12 * self.vlen,
            kind::ENUM | kind::FUNC_PROTO => 12 + 8 * self.vlen,
            kind::PTR | kind::FWD | kind::TYPEDEF..=kind::FUNC | kind::FLOAT | kind::TYPE_TAG => 12,
            _ => return None,
        })
    }

    /// Offsets in the entry of the ids of the types that it is made of.
    fn parts(&self) -> Vec<usize> {
        match self.kind {
            kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => vec![8],
            kind::ARRAY => vec![12, 16],
            kind::STRUCT | kind::UNION => (0..self.vlen).map(|i| 12 + 12 * i + 4).collect(),
            _ => Vec::new(),
        }
    }

    /// Offsets in the entry of its own name's place in the strings, and of those of its members.
    fn names(&self) -> Vec<usize> {
        let size = match self.kind {
            kind::STRUCT | kind::UNION | kind::ENUM64 => 12,
            kind::ENUM | kind::FUNC_PROTO => 8,
            _ => return vec![0],
        };
        std::iter::once(0).chain((0..self.vlen).map(|i| 12 + size * i)).collect()
    }
}

struct Small<'a> {
    source: &'a Source<'a>,
    /// New id by old; 0 is none.
    ids: Vec<u32>,
    /// Old ids in the order of the new.
    order: Vec<u32>,
}

impl Small<'_> {
    fn add(&mut self, id: u32) {
        if id != 0 && self.ids.get(id as usize) == Some(&0) {
            self.order.push(id);
            self.ids[id as usize] = self.order.len() as u32;
        }
    }

    /// Adds what the types are made of, and what that is made of.
    fn close(&mut self) -> Option<()> {
        let mut next = 0;
        while let Some(&id) = self.order.get(next) {
            let t = self.source.get(id)?;
            for part in t.parts() {
                self.add(u32_at(self.source.types, t.at + part)?);
            }
            next += 1;
        }
        Some(())
    }

    fn write(&self, full: &[u8]) -> Option<Vec<u8>> {
        let mut types = Vec::new();
        // Each name as often as it is used: all of the kernel's names are ten times as much, and libbpf reads what is here.
        let mut strings = vec![0];
        for &id in &self.order {
            let t = self.source.get(id)?;
            let start = types.len();
            types.extend_from_slice(self.source.types.get(t.at..t.at + t.len()?)?);
            for part in t.parts() {
                let old = u32_at(&types, start + part)?;
                types[start + part..start + part + 4].copy_from_slice(&self.ids.get(old as usize)?.to_ne_bytes());
            }
            for name in t.names() {
                let old = u32_at(&types, start + name)?;
                let new = if old == 0 { 0 } else { u32::try_from(strings.len()).ok()? };
                types[start + name..start + name + 4].copy_from_slice(&new.to_ne_bytes());
                if old != 0 {
                    strings.extend_from_slice(self.source.name(old)?);
                    strings.push(0);
                }
            }
            if t.kind == kind::PTR {
                types[start + 8..start + 12].fill(0);
            }
        }
        let mut out = Vec::with_capacity(HEADER + types.len() + strings.len());
        out.extend_from_slice(&full[..4]);
        for field in [HEADER, 0, types.len(), types.len(), strings.len()] {
            out.extend_from_slice(&u32::try_from(field).ok()?.to_ne_bytes());
        }
        out.extend_from_slice(&types);
        out.extend_from_slice(&strings);
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Option<Vec<u8>> {
        match std::fs::read("/sys/kernel/btf/vmlinux") {
            Ok(full) => Some(full),
            Err(e) => {
                parshall_testkit::skip("type information made smaller", &format!("/sys/kernel/btf/vmlinux: {e}"));
                None
            }
        }
    }

    #[test]
    fn members_are_found_where_the_kernel_has_them() {
        let Some(full) = kernel() else { return };
        assert_eq!(member_offset(&full, "list_head", "prev"), Some(8));
        assert_eq!(member_offset(&full, "list_head", "no_such_member"), None);
        assert_eq!(member_offset(&full, "no_such_structure", "prev"), None);
        assert_eq!(member_offset(&full[..full.len() / 2], "list_head", "prev"), None);
    }

    /// Kind, name, size and members with their offsets of every named structure.
    fn shapes(bytes: &[u8], wanted: &HashSet<&[u8]>) -> Vec<String> {
        let source = Source::parse(bytes).expect("type information");
        let mut shapes = Vec::new();
        for id in 1..source.offsets.len() as u32 {
            let t = source.get(id).expect("in range");
            let name = source.name(t.name).expect("a name");
            if !matches!(t.kind, kind::STRUCT | kind::UNION) || !wanted.contains(name) {
                continue;
            }
            let member = |i: usize| {
                let at = t.at + 12 + 12 * i;
                let name = source.name(u32_at(source.types, at)?)?;
                let part = source.get(u32_at(source.types, at + 4)?)?;
                Some(format!("{}:{}@{}", String::from_utf8_lossy(name), part.kind, u32_at(source.types, at + 8)?))
            };
            let members: Vec<String> = (0..t.vlen).map(|i| member(i).expect("a member")).collect();
            let size = u32_at(source.types, t.at + 8).expect("in range");
            shapes.push(format!("{} {size} {}", String::from_utf8_lossy(name), members.join(" ")));
        }
        shapes.sort();
        shapes
    }

    #[test]
    fn wanted_structures_keep_their_shape_and_little_else_stays() {
        let Some(full) = kernel() else { return };
        let wanted: HashSet<&[u8]> = [&b"tcp_sock"[..], b"sk_buff", b"no_such_structure"].into();
        let (small, ids) = reduce(&full, &wanted, &[b"sk_buff", b"no_such_structure"]).expect("understood");
        assert_eq!(shapes(&small, &wanted), shapes(&full, &wanted));
        assert_eq!(shapes(&small, &wanted).len(), 2);
        let source = Source::parse(&full).expect("type information");
        let followed = source.get(ids[0]).expect("in range");
        assert_eq!((source.name(followed.name), followed.kind), (Some(&b"sk_buff"[..]), kind::STRUCT));
        assert_eq!(ids[1], 0, "what the kernel does not have has no number");
        let types = Source::parse(&small).expect("type information").offsets.len();
        assert!((100..2000).contains(&types), "{types} types");
    }

    #[test]
    fn damaged_type_information_is_refused() {
        let Some(full) = kernel() else { return };
        let wanted: HashSet<&[u8]> = [&b"tcp_sock"[..]].into();
        for end in [0, 1, 23, 24, 100, full.len() / 2, full.len() - 1] {
            assert_eq!(reduce(&full[..end], &wanted, &[]), None, "cut at {end}");
        }
        let mut broken = full.clone();
        broken[HEADER + 4..HEADER + 8].fill(0xff);
        assert_eq!(reduce(&broken, &wanted, &[]), None);
    }
}
