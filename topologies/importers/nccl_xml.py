"""Reader of the XML in which NCCL and RCCL keep a node's topology (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE).

The meaning of elements and attributes is that of NCCL's src/graph/xml.cc and topo.cc, and of RCCL's files for xgmi.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from topologies.errors import InputError
from topologies.importers import rates
from topologies.importers.node import MOST_DEVICES, Nic, Node, Vertex, distances
from topologies.topology import GCN, MAX_CAPABILITY, MIN_CAPABILITY

_MOST_ELEMENTS, _DEEPEST = 20_000, 64  # A node has some 200 elements, a rack some 2,000.
_SWITCH, _CPU = "0x068000", "0x068001"  # PCI classes of an NVLink's targets.
_FASTEST_NIC_GBS = 1000.0
_GCN = {"910": "90a"}  # RCCL writes gfx90a as 910.
_VIRTUAL = re.compile(r"veth|br-|docker|virbr|vnet|tap|tun|cni|flannel|cali|lxc")  # Prefixes of virtual NICs.
_RIGHT = "a topology as NCCL_TOPO_DUMP_FILE has it"


@dataclass
class _Element:
    """An XML element.

    Attributes:
        tag: The element's name.
        values: The element's attributes.
        line: Line of the file.
        parts: Elements inside this one.
    """

    tag: str
    values: dict[str, str]
    line: int
    parts: list[_Element] = field(default_factory=list)

    def walk(self, above: tuple[_Element, ...] = ()) -> Iterator[tuple[_Element, tuple[_Element, ...]]]:
        """Yield this element and all elements inside it in order, each with those around it, the outermost first."""
        yield self, above
        for part in self.parts:
            yield from part.walk((*above, self))


def is_nccl_xml(text: str) -> bool:
    """Return whether a text begins as XML does."""
    return text.lstrip("\ufeff \t\n").startswith("<")


def read_nccl_xml(text: str, origin: str) -> Node:
    """Return the node of a dump.

    Raises:
        InputError: The text is no dump; the message is one line with the line of the file.
    """
    return _NcclXmlReader(_parsed(text, origin), origin).node()


def _parsed(text: str, origin: str) -> _Element:
    """Return the root element of an XML text, within limits on the number and depth of elements.

    Raises:
        InputError: The text is no XML, exceeds the limits or declares a document type.
    """
    parser = expat.ParserCreate()
    around: list[_Element] = [_Element("", {}, 0)]
    count = 0

    def fail(problem: str, line: int) -> None:
        """Raise InputError with the problem and the number of the line in the file."""
        raise InputError(f"{origin}:{line}: {problem}; it must be {_RIGHT}")

    def begin(tag: str, values: dict[str, str]) -> None:
        """Add an element to the one around it; raise InputError for too many elements, or too deep ones."""
        nonlocal count
        count += 1
        if count > _MOST_ELEMENTS or len(around) > _DEEPEST:
            fail("too many elements, or too deep", parser.CurrentLineNumber)
        around[-1].parts.append(element := _Element(tag, values, parser.CurrentLineNumber))
        around.append(element)

    def end(_: str) -> None:
        """Close the innermost element."""
        around.pop()

    def doctype(*_: object) -> None:
        """Raise InputError, because the text declares a document type."""
        fail("a document type is declared", parser.CurrentLineNumber)

    parser.StartElementHandler, parser.EndElementHandler, parser.StartDoctypeDeclHandler = begin, end, doctype
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        fail(f"not XML: {expat.ErrorString(error.code)}", error.lineno)
    return around[0].parts[0]


class _NcclXmlReader:
    """A reader that turns one dump into a node.

    Attributes:
        root: Root element.
        origin: Name of the dump in errors.
        around: Elements around each element, by its id.
        all: All elements in order.
        devices: Elements of the devices, in the order of their ranks.
        remarks: Sources of the figures, a line each.
        vertex: Vertex of each device, CPU, bridge and switch by the element's id.
    """

    def __init__(self, root: _Element, origin: str) -> None:
        self.root, self.origin = root, origin
        if root.tag != "system":
            description = (
                "an NCCL graph, as NCCL_GRAPH_DUMP_FILE has it" if root.tag == "graphs" else f"<{root.tag[:40]}>"
            )
            self._fail(root, "", f"{description}; it must be <system>, {_RIGHT}")
        elements = list(root.walk())
        self.around = {id(element): above for element, above in elements}
        self.all = [element for element, _ in elements]
        self.devices = self._devices()
        self.remarks: list[str] = []

    def _fail(self, element: _Element, attribute: str, problem: str) -> None:
        """Raise InputError with the element's line and name, the attribute ("" for none) and the problem."""
        where = f"<{element.tag[:40]}>{' ' + attribute if attribute else ''}"
        raise InputError(f"{self.origin}:{element.line}: {where}: {problem}")

    def _number(self, element: _Element, name: str, least: float, most: float, default: float | None = None) -> float:
        """Return the number of an attribute, from `least` to `most`, or the default where the attribute is missing.

        Raises:
            InputError: The attribute is no such number, or it is missing and there is no default.
        """
        text = element.values.get(name)
        if text is None and default is not None:
            return default
        if text is None or not re.fullmatch(r"-?[0-9]{1,12}(\.[0-9]{0,12})?", text) or not least <= float(text) <= most:
            self._fail(element, name, f"{text if text is None else repr(text[:40])}; it must be {least:g} to {most:g}")
        return float(text or 0)

    def _devices(self) -> list[_Element]:
        """Return the elements of the devices, in the file's order, or by `dev` where all have one on a single host.

        Devices are <gpu> elements, or 3D controllers where there is no <gpu>.

        Raises:
            InputError: There are none or too many, or a `dev` is no number.
        """
        gpus = [element for element in self.all if element.tag == "gpu"]
        if not gpus:
            gpus = [e for e in self.all if e.tag == "pci" and e.values.get("class", "").startswith("0x0302")]
        if not gpus:
            self._fail(
                self.root,
                "",
                "names no <gpu>, and no <pci> of class 0x0302; it must be what NCCL dumps, which has them",
            )
        self._check_count(gpus, "device")
        hosts = {id(gpu): self._host(gpu) for gpu in gpus}
        if len(set(hosts.values())) == 1 and all("dev" in gpu.values for gpu in gpus):
            gpus.sort(key=lambda gpu: self._number(gpu, "dev", 0, 1e6))
        return gpus

    def _check_count(self, elements: list[_Element], kind: str) -> None:
        """Raise InputError if there are more than MOST_DEVICES elements, which the message calls by `kind`."""
        if len(elements) > MOST_DEVICES:
            self._fail(
                elements[MOST_DEVICES], "", f"one {kind} more than {MOST_DEVICES}; it must be at most {MOST_DEVICES}"
            )

    def _host(self, element: _Element) -> str:
        """Return the hash of the host that an element belongs to, or "" where none is stated."""
        return next((e.values["host_hash"] for e in self.around[id(element)] if "host_hash" in e.values), "")

    def _busid(self, device: _Element) -> str:
        """Return the text "HOST ADDRESS" of a device: the hash of its host and its PCI address in lower case.

        Each of them is "" where it is not stated. All parts of a divided device have the same text.
        """
        holder = device if device.tag == "pci" else next(
            (e for e in reversed(self.around[id(device)]) if e.tag == "pci"), device
        )  # fmt: skip
        return f"{self._host(device)} {holder.values.get('busid', '').lower()}"

    def node(self) -> Node:
        """Return the node whose devices, NICs and links the dump states; it adds to `remarks`, so it is called once.

        Raises:
            InputError: An attribute is wrong, or an element is where it cannot be.
        """
        hosts = [self._host(device) for device in self.devices]
        order = list(dict.fromkeys(hosts))
        node = Node(len(self.devices), hosts=[order.index(host) for host in hosts], remarks=self.remarks)
        self._place_pcie(node)
        self._place_fast(node)
        self._place_nics(node)
        sms = {self._number(gpu, "sm", 0, 1e4, 0) for gpu in self.devices}
        amd = any("gcn" in gpu.values for gpu in self.devices)
        parts_at = Counter(self._busid(device) for device in self.devices)
        parts = [rank for rank, device in enumerate(self.devices) if parts_at[self._busid(device)] > 1]
        if parts:
            which = ", ".join(map(str, parts[:8])) + (" …" if len(parts) > 8 else "")
            self.remarks.append(
                f"ranks {which} are parts of devices, whose links they share; a part's SMs are not known"
            )
        if len(sms) > 1:
            self.remarks.append(f"devices differ (sm {', '.join(f'{sm:g}' for sm in sorted(sms))}): SMs are not stated")
        else:
            (sm,) = sms
            node.gcn = self._gcn() if amd else ""
            if not amd and MIN_CAPABILITY <= sm <= MAX_CAPABILITY:
                node.compute_capability = int(sm)
            node.sms = 0 if parts else int(sm) if amd else rates.SMS.get(int(sm), 0)
            if node.sms:
                origin = "read" if amd else f"assumed for compute capability {sm / 10:.1f}"
                self.remarks.append(f"{node.sms} {'compute units' if amd else 'SMs'} a device: {origin}")
        return node

    def _gcn(self) -> str:
        """Return the architecture that all devices state, as in "gfx942"; "" where they differ or state none."""
        stated = {gpu.values.get("gcn", "").split(":")[0].removeprefix("gfx") for gpu in self.devices}
        name = f"gfx{_GCN.get(number, number)}" if len(stated) == 1 and (number := stated.pop()) else ""
        return name if re.fullmatch(GCN, name) else ""

    def _place_pcie(self, node: Node) -> None:
        """Add the PCIe links and the links between sockets to the node, and set `vertex`.

        A link that states no known speed has a usual one; a remark of the node says how many have.

        Raises:
            InputError: There are too many CPUs, or a link to a CPU is wrong.
        """
        self.vertex: dict[int, Vertex] = {id(device): rank for rank, device in enumerate(self.devices)}
        cpus = [element for element in self.all if element.tag == "cpu"]
        self._check_count(cpus, "CPU")
        for i, cpu in enumerate(cpus):
            self.vertex[id(cpu)] = f"cpu{i}"
        assumed, unread = 0, 0
        for i, element in enumerate(element for element in self.all if element.tag == "pci"):
            if id(element) not in self.vertex:
                self.vertex[id(element)] = f"pcie{i}"
            above = self._above(element)
            if above is None:
                continue
            speed, width = element.values.get("link_speed", ""), element.values.get("link_width", "")
            gbs = rates.pcie_gbs(speed, width)
            if gbs is None:
                gbs = rates.USUAL_PCIE_GBS
                if width not in ("", "0") or speed.strip() not in ("", "Unknown"):
                    unread += 1
                assumed += 1
            node.pcie[self.vertex[id(element)], above] = gbs
        for rank, device in enumerate(self.devices):
            above = self._above(device)
            if device.tag == "gpu" and above is not None:  # A GPU's link is as wide as that of its <pci> element.
                holder = self.around[id(device)][-1]
                outer = self._above(holder)
                node.pcie[rank, above] = node.pcie.get((above, outer), rates.USUAL_PCIE_GBS) if outer else (
                    rates.USUAL_PCIE_GBS
                )  # fmt: skip
            for part in device.parts:
                if part.tag == "c2c":
                    gbs = self._number(part, "bw", 1, 1e7) * self._number(part, "count", 1, 64) / 1000
                    self._join_cpu(node, device, rank, gbs)
        self._join_sockets(node, cpus)
        if node.pcie:
            read = "from each link's generation and width"
            partly = f"; {assumed} links state none, {rates.USUAL_PCIE_GBS:.3g} GB/s are assumed" if assumed else ""
            node.pcie_remarks.append(f"PCIe: {read}{partly}")
        if unread:
            node.pcie_remarks.append(f"{unread} PCIe links have a speed that is not known: it is ignored")

    def _above(self, element: _Element) -> Vertex | None:
        """Return the vertex of the innermost element around an element that has one, or None."""
        return next((self.vertex[id(e)] for e in reversed(self.around[id(element)]) if id(e) in self.vertex), None)

    def _join_cpu(self, node: Node, device: _Element, rank: int, gbs: float) -> None:
        """Add a link of `gbs` GB/s per direction between a device and its CPU to the node's PCIe links.

        Args:
            node: The node, which is changed.
            device: Element of the device.
            rank: Rank of the device.
            gbs: Bandwidth in GB/s, per direction.

        Raises:
            InputError: The device is inside no CPU.
        """
        cpu = next((e for e in self.around[id(device)] if e.tag == "cpu"), None)
        if cpu is None:
            self._fail(device, "", "is inside no <cpu>, but has a link to one; it must be inside a <cpu>")
        else:
            node.pcie[rank, self.vertex[id(cpu)]] = gbs

    def _join_sockets(self, node: Node, cpus: list[_Element]) -> None:
        """Add a link between every two CPUs of one host, at the rate that NCCL assumes, with a remark.

        Args:
            node: The node, which is changed.
            cpus: Elements of the CPUs.
        """
        joined: set[str] = set()
        for i, cpu in enumerate(cpus):
            for earlier_cpu in cpus[:i]:
                if cpu.values.get("host_hash") == earlier_cpu.values.get("host_hash"):
                    gbs = min(rates.smp_gbs(cpu.values), rates.smp_gbs(earlier_cpu.values))
                    node.pcie[self.vertex[id(earlier_cpu)], self.vertex[id(cpu)]] = gbs
                    joined.add(f"{gbs:g}")
        if joined:
            node.pcie_remarks.append(f"between NUMA nodes {' and '.join(sorted(joined))} GB/s: what NCCL assumes")

    def _place_fast(self, node: Node) -> None:
        """Add the NVLink or xGMI links to the node, and remarks on them.

        Links into NVSwitches lead to one switch, "nvswitch". Links to CPUs are added to the PCIe links. Links that lead
        to no other device are left out.

        Raises:
            InputError: An attribute is wrong.
        """
        rank_of = {self._busid(device): rank for rank, device in enumerate(self.devices)}
        through = [0.0] * node.devices
        dangling: list[str] = []
        figures: set[str] = set()
        for rank, device in enumerate(self.devices):
            for link in device.parts:
                if link.tag not in ("nvlink", "xgmi"):
                    continue
                gbs = self._fast_gbs(device, link, figures) * self._number(link, "count", 1, 1024)
                node.kind = "xGMI" if link.tag == "xgmi" else node.kind
                kind = link.values.get("tclass", "")
                target = rank_of.get(f"{self._host(device)} {link.values.get('target', '').lower()}")
                if kind == _SWITCH:
                    through[rank] += gbs
                elif kind == _CPU:
                    self._join_cpu(node, device, rank, gbs)
                elif target is None or target == rank:
                    dangling.append(f"{rank} to {link.values.get('target', '?')[:20]}")
                else:
                    node.fast[rank, target] = node.fast.get((rank, target), 0.0) + gbs
        for rank, gbs in enumerate(through):
            if gbs:
                node.fast[rank, "nvswitch"] = node.fast["nvswitch", rank] = gbs
        if any(through):
            self.remarks.append("NVSwitches are drawn as one switch for all devices with a link to one")
        self.remarks += sorted(figures)
        if dangling:
            more = f" and {len(dangling) - 3} more" if len(dangling) > 3 else ""
            self.remarks.append(f"links that lead to no other device are left out: {', '.join(dangling[:3])}{more}")
        if not any(part.tag in ("nvlink", "xgmi") for device in self.devices for part in device.parts):
            self.remarks.append(
                "no nvlink or xgmi elements: NCCL asks the driver for them; if the machine has such links,"
                " import NCCL's dump (NCCL_TOPO_DUMP_FILE) or the output of nvidia-smi topo -m"
            )

    def _fast_gbs(self, device: _Element, link: _Element, figures: set[str]) -> float:
        """Return the GB/s of one NVLink or xGMI link per direction, known or assumed.

        Args:
            device: Element of the device.
            link: Element of the link.
            figures: Lines on the sources of rates, to which that of this rate is added.

        Raises:
            InputError: The device's compute capability is no number.
        """
        if link.tag == "xgmi":
            gcn = device.values.get("gcn", "")
            known_gbs = rates.xgmi_gbs(gcn)
            gbs, whose = known_gbs or rates.USUAL_XGMI_GBS, f"gfx{gcn.removeprefix('gfx')[:12]}"
        else:
            capability = int(self._number(device, "sm", 0, 1e4, 0))
            known_gbs = rates.NVLINK_GBS.get(capability)
            gbs, whose = known_gbs or rates.USUAL_NVLINK_GBS, f"compute capability {capability / 10:.1f}"
        how = f"derived from {whose}" if known_gbs else f"assumed, {whose} is not known"
        figures.add(
            f"{gbs:g} GB/s an {'xGMI link' if link.tag == 'xgmi' else 'NVLink'}, of which the count is read: {how}"
        )
        return gbs

    def _guid(self, net: _Element) -> int:
        """Return the GUID of a NIC, 0 for none; raise InputError if it is no hexadecimal number."""
        text = net.values.get("guid", "0x0")
        if not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text):
            self._fail(net, "guid", f"{text[:40]!r}; it must be as in 0x946dae0300d6c9c8")
        return int(text, 16)

    def _place_nics(self, node: Node) -> None:
        """Add the NICs to the node, and remarks on them; virtual NICs are left out.

        NICs are <net> elements, or network controllers where no <net> is left. A NIC has at most the rate of its PCIe
        link, and this rate where it states none.

        Raises:
            InputError: There are too many NICs, or one of them is wrong.
        """
        nets = [element for element in self.all if element.tag == "net"]
        virtual = [net for net in nets if _VIRTUAL.match(net.values.get("name", ""))]
        if virtual:
            self.remarks.append(f"{len(virtual)} virtual NICs are left out, as {virtual[0].values['name'][:40]!r}")
            nets = [net for net in nets if not _VIRTUAL.match(net.values.get("name", ""))]
        names: set[str] = set()
        unstated: list[str] = []
        nets = nets or [e for e in self.all if e.tag == "pci" and e.values.get("class", "").startswith("0x02")]
        self._check_count(nets, "NIC")
        outer_gbs: dict[Vertex, float] = {}
        for (below, _), rate in node.pcie.items():
            outer_gbs.setdefault(below, rate)
        far_from = distances(node.pcie, node.devices)
        for net in nets:
            at = self.vertex.get(id(net)) or self._above(net)
            name = (net.values.get("name") or net.values.get("busid") or "nic")[:40]
            name = name if name not in names else f"{name}.{net.values.get('port', len(names))}"
            names.add(name)
            if at is None or not name.isprintable():
                self._fail(net, "name", "is inside no <cpu> or <pci>, or has no printable name; it must have both")
            else:
                outer = outer_gbs.get(at, rates.USUAL_PCIE_GBS)
                stated = max(0.0, self._number(net, "speed", -1, 1e11, 0)) / 8000
                if stated > _FASTEST_NIC_GBS:
                    self.remarks.append(f"NIC {name} states {stated:.3g} GB/s, more than any NIC has: it is ignored")
                    stated = 0.0
                gbs = min(stated, outer) if stated and str(at).startswith("pcie") else stated
                node.nics.append(Nic(name, gbs or outer, far_from(at), self._guid(net)))
                if not stated:
                    unstated.append(name)
        if unstated:
            which = f"{', '.join(unstated[:3])}{f' and {len(unstated) - 3} more' if len(unstated) > 3 else ''}"
            self.remarks.append(f"NICs that state no speed have that of their PCIe links: {which}")
